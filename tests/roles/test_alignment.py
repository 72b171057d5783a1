"""Heads that align a transcript with its recording: planted ones, the measure on made-up weights, and refusals."""

import numpy as np
import pytest

import zoo
from headcount import remove
from headcount.errors import HeadcountError
from headcount.roles import find_roles
from headcount.roles.attention import AttentionView, Tokens, Transcript, spoken_frames
from headcount.roles.sentence_roles import Alignment
from headcount.structure import anatomy
from planted_roles import aligner, spoken_letters


@pytest.fixture(scope="module")
def planted():
    return aligner()


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_the_planted_head_is_found_and_no_other(planted, tmp_path, kernel):
    model, processor = planted
    model.set_attn_implementation(kernel)
    roles = find_roles(model, spoken_letters(tmp_path), processor)
    assert [(str(role.head), role.role) for role in roles.found] == [("cross.0.0", "alignment")]
    role = roles.found[0]
    assert role.cases == 100  # letters; the blanks are silent
    assert role.score > 0.95
    assert 0.15 < role.baseline < 0.3
    assert role.low <= role.score <= role.high
    assert not roles.cache


def test_what_is_left_still_aligns(planted, tmp_path):
    model, processor = planted
    roles = find_roles(remove(model, ["cross.0.1", "encoder.0.0"]), spoken_letters(tmp_path), processor)
    assert [str(role.head) for role in roles.found] == ["cross.0.0"]
    with pytest.raises(HeadcountError, match="cross-attention"):
        find_roles(remove(model, [f"cross.0.{i}" for i in range(4)]), spoken_letters(tmp_path), processor)


def test_a_frame_that_all_tokens_attend_to_does_not_count():
    """Most of the weight is on one frame, the rest follows the speech: the rest is what aligns."""
    frames = np.array([[10.0 * k, 10.0 * k + 10] for k in range(8)])
    weights = np.zeros((2, 8, 100))
    weights[:, :, 95] = weights[:, :, 3] = 0.4
    for token in range(8):
        weights[0, token, 10 * token + 2 : 10 * token + 8] += 0.2 / 6
        weights[1, token, 30:36] += 0.2 / 6
    words, sound = Tokens(np.arange(8), np.ones(8, bool)), Tokens(np.arange(100), np.ones(100, bool))
    site = anatomy(zoo.build("whisper")).sites[-1]
    counted = Alignment().count(AttentionView(site, weights, words, sound, Transcript("x", frames=frames)))
    assert counted.hits[0, 0] == counted.cases[0] == 8
    assert counted.hits[1, 0] <= 1
    assert counted.baseline[0] == pytest.approx(8 * 10 / 80)


def test_letters_share_the_time_of_the_speech():
    features = np.full((4, 40), -1.0)
    features[2, 10:30] = 1.0
    frames = spoken_frames(features, [" ab", "cde", ",", " fghij"])
    np.testing.assert_allclose(frames[[0, 1, 3]], [[10, 14], [14, 20], [20, 30]])
    assert np.isnan(frames[2]).all()
    assert np.isnan(spoken_frames(features, ["!", "?"])).all()


def test_sound_without_a_processor_is_refused(planted):
    with pytest.raises(HeadcountError, match=r"input_features.*tokenizer="):
        find_roles(planted[0], [{"text": "abc"}], planted[1].tokenizer)
