"""Heads that align a transcript with its recording, or the words of a translation: planted ones, and refusals."""

import copy

import numpy as np
import pytest
import torch

import zoo
from headcount import remove
from headcount.errors import BadData, HeadcountError
from headcount.roles import Thresholds, find_roles
from headcount.roles.attention import AttentionView, Transcript, spoken_frames, warped
from headcount.roles.sentence_roles import Alignment, WordAlignment
from headcount.roles.sentences import Aligned, Tokens
from headcount.structure import anatomy
from planted_roles import aligner, spoken_letters, translator


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
    weights = np.zeros((4, 8, 100))
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


def test_the_best_path_is_the_best_of_all():
    """Dynamic time warping, beside all monotone paths of a small map."""
    weights = np.random.default_rng(3).normal(size=(3, 5))

    def paths(token, frame):
        if (token, frame) == (2, 4):
            yield [(2, 4)]
            return
        for step in ((1, 1), (1, 0), (0, 1)):
            if token + step[0] <= 2 and frame + step[1] <= 4:
                yield from ([(token, frame), *rest] for rest in paths(token + step[0], frame + step[1]))

    best = max(paths(0, 0), key=lambda path: sum(weights[place] for place in path))
    frames = [[frame for token, frame in best if token == one] for one in range(3)]
    assert warped(weights).tolist() == [[min(some), max(some) + 1] for some in frames]


def test_a_head_is_compared_with_the_others_that_the_model_names(planted, tmp_path):
    """Head 3 is made a twin of 0, which follows the letters; head 1 looks at one frame, and 2 behind the letter."""
    model, processor = copy.deepcopy(planted[0]), planted[1]
    cross, width = model.model.decoder.layers[0].encoder_attn, 64
    with torch.no_grad():
        for weight in (cross.q_proj.weight, cross.k_proj.weight):
            weight[3 * width :] = weight[:width]
    data = spoken_letters(tmp_path)

    def scores(*named):
        model.generation_config.alignment_heads = [list(one) for one in named]
        roles = find_roles(model, data, processor, thresholds=Thresholds(alignment=0))
        detail = "where the other aligning heads put it"
        return {str(role.head): role.score for role in roles.found if role.detail == detail}

    assert scores() == scores((0, 0)) == {}  # nothing to compare with
    twins = scores((0, 0), (0, 3))
    assert min(twins["cross.0.0"], twins["cross.0.3"]) > 0.95
    assert max(twins.get("cross.0.1", 0), twins.get("cross.0.2", 0)) < 0.5
    unlike = scores((0, 0), (0, 2))  # each by the other alone
    assert max(unlike.get("cross.0.0", 0), unlike.get("cross.0.2", 0)) < 0.5


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


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_heads_that_align_words_are_found_and_no_others(kernel):
    model, tokenizer, rows = translator()
    model.set_attn_implementation(kernel)
    roles = find_roles(model, rows, tokenizer)
    found = {(str(role.head), role.detail): role for role in roles.found if role.role == "alignment"}
    assert set(found) == {("cross.0.0", "of the word it reads"), ("cross.0.1", "of the word it predicts")}
    reading, predicting = found.values()
    assert (reading.cases, predicting.cases) == (200, 200)
    assert reading.score == 1
    assert predicting.score == pytest.approx(0.8, abs=0.03)  # nothing tells it what the first word is
    assert reading.baseline == predicting.baseline == pytest.approx(0.2)
    assert roles.papers["alignment"] == "Chen et al. 2020"
    assert {role.role for role in find_roles(model, [{"text": row["source"]} for row in rows], tokenizer).best} == {
        role.role for role in roles.best
    } - {"alignment"}


def test_words_are_aligned_by_their_pieces():
    """Two source words of two and one pieces, three target words of one, two and one; counted by hand."""
    source = Tokens(np.arange(4), np.array([True, True, True, False]), np.array([(0, 2), (2, 4), (5, 7), (0, 0)]))
    spans = np.array([(0, 0), (0, 1), (2, 4), (4, 5), (6, 7)])
    target = Tokens(np.arange(5), np.arange(5) > 0, spans, is_source=False)
    pair = Aligned("abcd ef", ((0, 4), (5, 7)), (), "here", "x yyy z", ((0, 1), (2, 5), (6, 7)), ((0, 0), (1, 1)))
    weights = np.full((1, 5, 4), 0.0)
    weights[0, :, 3] = 0.5  # the end of the source is no word
    weights[0, :, :3] = [(0.2, 0.2, 0.3), (0.1, 0.1, 0.3), (0.1, 0.1, 0.3), (0.2, 0.2, 0.3), (0.0, 0.0, 0.1)]
    sites = anatomy(zoo.build("marian")).sites
    counted = WordAlignment().count(AttentionView(sites[-1], weights, target, source, pair))
    # the strongest words: 0 1 1 0 1; the links of x, yyy (two pieces), z: 0, 1, none
    assert counted.cases.tolist() == [3, 3]
    assert counted.hits.tolist() == [[3, 1]]
    assert counted.baseline.tolist() == [1.5, 1.5]
    assert (
        WordAlignment().count(AttentionView(anatomy(zoo.build("marian")).sites[0], weights, target, source, pair))
        is None
    )


@pytest.mark.parametrize(
    ("links", "fact"),
    [
        ("0-0 x", "line 2, column 'alignment': 'x' is not a link"),
        ("0-0 1", "'1' is not a link between two words, such as 0-2"),
        ("0-5", "0-5 names target word 5, the last of 2 is 1"),
        ("3-1", "3-1 names source word 3, the last of 2 is 1"),
        ("", "has no aligned words"),
    ],
)
def test_a_wrong_alignment_is_refused_by_its_place(tmp_path, links, fact):
    model, tokenizer, _ = translator()
    file = tmp_path / "pairs.tsv"
    file.write_text(f"source\ttarget\talignment\nword1 word2\tword1 word2\t{links}\n")
    with pytest.raises(BadData) as refused:
        find_roles(model, file, tokenizer)
    assert fact in str(refused.value)


def test_a_model_without_cross_attention_aligns_no_words():
    _, tokenizer, rows = translator()
    with pytest.raises(HeadcountError, match="not a translator"):
        find_roles(zoo.build("gpt2"), rows, tokenizer)
