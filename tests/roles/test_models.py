"""Roles in models of all kinds: what each kind of attention is looked at for, and what is refused."""

import numpy as np
import pytest

import tiny_models
import zoo
from headcount.errors import BadData, HeadcountError
from headcount.roles import Sentence, Thresholds, find_roles
from headcount.roles.attention import AttentionView, encode
from headcount.roles.sentence_roles import Positional
from headcount.roles.sentences import Tokens
from headcount.structure import anatomy
from headcount.tasks.text import word_tokenizer
from planted_roles import encoder, sentences
from toy_jobs import WORDS
from toy_jobs import sentences as texts

LOOSE = Thresholds(positional=0, syntactic=0, rare=0, idle=0, frequent=2)


def rows(n=24):
    return [{"text": text} for text in texts(0, n)]


def test_every_kind_of_attention_of_a_translator():
    model, tokenizer = tiny_models.marian(), word_tokenizer(WORDS, "marian")
    roles = find_roles(model, rows(), tokenizer, thresholds=LOOSE, parser=False)
    seen = {(role.head.kind, role.role) for role in roles.found}
    assert {("encoder", "positional"), ("decoder", "positional"), ("cross", "positional")} <= seen
    assert {("encoder", "idle"), ("cross", "idle"), ("encoder", "rare"), ("cross", "rare")} <= seen
    assert ("decoder", "rare") not in seen  # what it writes has frequencies of its own
    assert {role.head.layer for role in roles.found if role.role == "rare"} == {0}
    ahead = [role for role in roles.best if role.head.kind == "decoder" and role.detail in ("+1", "+2")]
    assert not ahead


@pytest.mark.parametrize(
    "name", ["bert", "albert", "deberta-v2", "gpt2", "bloom", "llama", "mistral-sliding", "t5", "clip"]
)
def test_families(name):
    model = zoo.build_generator(name) if name == "t5" else zoo.build(name)
    tokenizer = word_tokenizer(WORDS)
    roles = find_roles(model, rows(12), tokenizer, thresholds=LOOSE, parser=False)
    kinds = {"clip": {"text"}, "t5": {"encoder", "decoder", "cross"}}.get(name, set(anatomy(model).kinds))
    assert {role.head.kind for role in roles.found} == kinds
    assert all(0 <= role.low <= role.score <= role.high <= 1 + 1e-6 for role in roles.found)


def test_an_encoder_decoder_that_does_not_write_is_looked_at_in_part():
    roles = find_roles(zoo.build("bart"), rows(12), word_tokenizer(WORDS), thresholds=LOOSE, parser=False)
    assert {role.head.kind for role in roles.found} == {"encoder"}
    assert any(remark.startswith("BartModel ") and "encoder" in remark for remark in roles.remarks)


@pytest.mark.parametrize(("name", "reads"), [("vit", "pixel_values"), ("whisper", "input_features")])
def test_models_that_read_no_text_are_refused(name, reads):
    with pytest.raises(HeadcountError, match=reads):
        find_roles(zoo.build(name), rows(4), word_tokenizer(WORDS), parser=False)


def test_a_tokenizer_that_does_not_fit_is_refused():
    many = word_tokenizer(" ".join(f"w{i}" for i in range(99)))
    with pytest.raises(BadData, match=r"example 0 has token id 103, .*\b30 tokens"):
        find_roles(tiny_models.bert(pad_token_id=0), [{"text": "w98"}], many, parser=False)


def test_a_slow_tokenizer_is_refused_where_words_matter():
    class Slow:
        is_fast, all_special_ids, pad_token_id, unk_token_id, mask_token_id = False, [0], 0, None, None
        model_max_length = 10**30

    with pytest.raises(HeadcountError, match=r"Slow .*fast tokenizer"):
        encode(tiny_models.bert(pad_token_id=0), Slow(), tuple(sentences(4)))


def test_long_sentences_are_cut_and_counted():
    model, tokenizer = tiny_models.bert(pad_token_id=0), word_tokenizer(WORDS)
    encoded, remarks = encode(model, tokenizer, (Sentence("the cat " * 20), Sentence("the cat")))
    assert encoded.lengths == [16, 4]
    assert any("1 of 2 sentences reach the limit of 16 tokens" in remark for remark in remarks)


def test_a_model_without_heads_is_refused():
    from headcount import remove

    model = remove(zoo.build("bert"), anatomy(zoo.build("bert")).heads)
    with pytest.raises(HeadcountError, match=r"\bheads\b"):
        find_roles(model, rows(4), word_tokenizer(WORDS), parser=False)


def test_bad_thresholds_are_refused():
    with pytest.raises(HeadcountError, match=r"\b90\b.*positional="):
        Thresholds(positional=90)
    with pytest.raises(HeadcountError, match=r"-1\b.*frequent="):
        Thresholds(frequent=-1)


def test_no_rare_words_is_said():
    model, tokenizer = encoder(sentences())
    roles = find_roles(model, sentences(20), tokenizer)
    assert any("rare-word heads" in remark and " 500 " in remark for remark in roles.remarks)
    assert [role.detail for role in roles.of("encoder.0.0")] == ["-1"]


def test_positions_count_where_they_exist():
    """Three words between special tokens, a head that looks at -1: two words have a word there."""
    weights = np.zeros((1, 5, 5))
    weights[0, range(1, 5), range(4)] = 1.0
    tokens = Tokens(np.arange(5), np.array([False, True, True, True, False]), np.zeros((5, 2)))
    site = anatomy(zoo.build("bert")).sites[0]
    counted = Positional(reach=1).count(AttentionView(site, weights, tokens, tokens, Sentence("a b c")))
    assert counted.cases.tolist() == [2, 3, 2]
    assert counted.hits[0].tolist() == [2, 1, 0]  # the first word's weight is on a special token: of the rest, itself
    np.testing.assert_allclose(counted.baseline, [2 / 3, 1, 2 / 3])
