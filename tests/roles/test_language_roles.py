"""Roles of language models, found on random tokens: planted ones, all families, and what is refused."""

import numpy as np
import pytest
import torch

import tiny_models
import zoo
from headcount import capture, remove
from headcount.errors import HeadcountError
from headcount.roles import Thresholds, find_roles
from headcount.roles.language_roles import _values, copied_tokens, make_probes, ordinary_tokens
from headcount.structure import anatomy
from headcount.tasks.text import word_tokenizer
from planted_roles import PLANTED_IN_LANGUAGE, VOCABULARY, grouped_copiers, language_model

DECODERS = [name for name, family in zoo.ZOO.items() if family.reads == "prompt"]
ANY = Thresholds(induction=0, previous=0, duplicate=0, copying=0, sink=0, retrieval=0, streaming=0)


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer(VOCABULARY, "gpt")


def names(roles):
    return {(str(role.head), role.role) for role in roles.found}


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_planted_roles_are_found_and_no_other(kernel):
    model, tokenizer = language_model()
    model.set_attn_implementation(kernel)
    roles = find_roles(model, tokenizer=tokenizer)
    assert names(roles) == PLANTED_IN_LANGUAGE
    for role in roles.found:
        assert role.score > 0.95
        assert role.low <= role.score <= role.high
        assert 0 < role.baseline < 0.5
        assert role.cases >= 100
    assert roles.papers["induction"] == "Olsson et al. 2022"
    keep = {(row["layer"], row["kv_head"]): row["keep"] for row in roles.cache["kv_heads"]}
    assert {head for head, what in keep.items() if what == "recent"} == {(0, 0), (0, 2)}


def test_what_is_left_keeps_its_role():
    model, tokenizer = language_model()
    smaller = remove(model, ["decoder.0.1", "decoder.0.3", "decoder.1.1", "decoder.1.2"])
    gone = ("decoder.0.1", "decoder.1.1")
    roles = find_roles(smaller, tokenizer=tokenizer)
    assert names(roles) == {one for one in PLANTED_IN_LANGUAGE if one[0] not in gone}
    table = roles.cache["full_attention_heads"]
    assert [len(row) for row in table] == [4, 4]  # columns are the heads that the model was trained with
    assert table[0][1] == 0.0
    assert table[1][0] > 0.9


def test_without_the_previous_token_there_is_no_induction():
    """The planted induction head composes with the head before it: no attention map shows it alone."""
    model, tokenizer = language_model()
    found = names(find_roles(remove(model, ["decoder.0.0"]), tokenizer=tokenizer))
    assert ("decoder.1.0", "induction") not in found
    assert ("decoder.1.0", "copying") in found


@pytest.mark.parametrize("off", [[], ["decoder.0.1"], ["decoder.0.0", "decoder.0.3"]])
def test_copying_with_shared_keys_and_values(off):
    model, tokenizer = grouped_copiers()
    roles = find_roles(remove(model, off), tokenizer=tokenizer)
    copying = {str(role.head) for role in roles.found if role.role == "copying"}
    assert copying == {"decoder.0.0", "decoder.0.2"} - set(off)
    assert names(roles) == {(head, "copying") for head in copying}
    assert all(row["keep"] == "all" for row in roles.cache["kv_heads"])


@pytest.mark.parametrize("name", DECODERS)
def test_every_family_of_decoders(name, tokenizer):
    model = zoo.build_generator(name)
    whole = anatomy(model).heads
    model = remove(model, [whole[1], whole[-1]])
    roles = find_roles(model, tokenizer=tokenizer, thresholds=ANY, max_length=32)
    heads = anatomy(model).heads
    for role in ("induction", "previous token", "duplicate token", "sink", "streaming"):
        found = {one.head for one in roles.found if one.role == role}
        assert found <= set(heads)
        far = role in ("induction", "duplicate token", "sink")  # some head of a random model beats uniform attention
        assert bool(found) is not (far and name == "mistral-sliding"), role  # whose tokens see three others
    assert {one.role for one in roles.best} == set(roles.papers)
    assert all(0 <= one.low <= one.score <= one.high <= 1 + 1e-6 for one in (*roles.found, *roles.best))
    assert len(roles.cache["kv_heads"]) == sum(len(site.kv_kept) for site in anatomy(model).sites)


@pytest.mark.parametrize("name", DECODERS)
def test_values_are_what_is_attended_to(name):
    """The first token attends to itself alone, so that a head's output there is the token's value."""
    model = zoo.build_generator(name)
    model = remove(model, [anatomy(model).heads[0], anatomy(model).heads[-2]])
    sites = anatomy(model).sites
    ids = torch.randint(4, zoo.VOCAB, (2, 6), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), capture(model, attention=False) as seen:
        expected = model(input_ids=ids, use_cache=False).logits
    with torch.no_grad():
        values, _ = _values(model, sites, ids)
    for site in sites:
        torch.testing.assert_close(values[site.name][:, 0], seen.contexts[site][:, 0], atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        list(copied_tokens(model, sites, ids, 1))
        torch.testing.assert_close(model(input_ids=ids, use_cache=False).logits, expected)  # nothing stays replaced


def test_copying_against_a_loop():
    """One head and one token at a time, with the model's own norm and output embeddings."""
    model = zoo.build_generator("llama")
    site = anatomy(model).sites[1]
    ids = torch.randperm(zoo.VOCAB - 4, generator=torch.Generator().manual_seed(1))[None, :12] + 4
    with torch.no_grad():
        ((_, copied),) = copied_tokens(model, [site], ids, 0)
        seen = {}
        handle = site.module.v_proj.register_forward_hook(lambda module, args, output: seen.update(v=output))
        model(input_ids=ids)
        handle.remove()
        for head in range(8):
            shared = head // 2  # 8 heads, 4 key-value heads
            for position in range(12):
                value = seen["v"][0, position, shared * 4 : shared * 4 + 4]
                part = site.output.weight[:, head * 4 : head * 4 + 4] @ value
                logits = model.lm_head(model.model.norm(part))[ids[0]]
                assert copied[head, 0, position] == (logits.argmax() == position)


def test_induction_against_a_loop(tokenizer):
    model = zoo.build_generator("gpt2", attn="eager")
    roles = find_roles(model, tokenizer=tokenizer, thresholds=ANY, seed=3)
    probes = make_probes(model, tokenizer, seed=3)
    weights = []
    for probe, tokens in zip(probes.sentences, probes.tokens, strict=True):
        if not probe.period:
            continue
        with torch.no_grad():
            attention = model(input_ids=torch.tensor(tokens.ids)[None], output_attentions=True).attentions
        for query in range(probe.start + probe.period, len(tokens.ids)):
            earlier = [k for k in range(query) if tokens.ids[k] == tokens.ids[query]]
            weights.append([layer[0, :, query, earlier[-1] + 1].tolist() for layer in attention])
    means = np.mean(weights, axis=0)  # (layers, heads)
    best = next(role for role in roles.best if role.role == "induction")
    assert best.score == pytest.approx(means.max(), abs=1e-5)
    assert means[best.head.layer, best.head.index] == pytest.approx(means.max())
    assert best.cases == len(weights)


def test_probes_are_seeded_and_ordinary(tokenizer):
    model = zoo.build_generator("gpt2")
    probes = make_probes(model, tokenizer, seed=1)
    assert probes.ids() == make_probes(model, tokenizer, seed=1).ids()
    assert probes.ids() != make_probes(model, tokenizer, seed=2).ids()
    assert not set(ordinary_tokens(model, tokenizer)) & set(tokenizer.all_special_ids)
    for probe, tokens in zip(probes.sentences, probes.tokens, strict=True):
        ids = tokens.ids[probe.start :]
        if probe.period:
            assert len(set(ids)) == probe.period == len(ids) / 2
        else:
            needle = tokens.ids[probe.asked :]
            assert (tokens.ids[probe.needle : probe.needle + len(needle)] == needle).all()
            assert not set(needle) & set(tokens.ids[probe.start : probe.needle])
            assert probe.needle + len(needle) <= probe.asked - probe.recent + 1


def test_copying_is_skipped_without_output_embeddings(tokenizer):
    roles = find_roles(zoo.build("gpt2"), tokenizer=tokenizer, max_length=32)
    assert "copying" not in roles.papers
    assert any("GPT2Model" in remark and "copying" in remark for remark in roles.remarks)


@pytest.mark.parametrize(
    ("build", "fact"),
    [
        (lambda: zoo.build("bert"), r"BertModel .*encoder.* data="),
        (lambda: tiny_models.marian(), r"MarianMTModel .*cross.* data="),
        (lambda: zoo.build("clip"), r"CLIPModel .*text.* data="),
        (lambda: zoo.build("whisper"), r"WhisperModel .*cross.* data="),
    ],
)
def test_models_that_are_not_language_models_are_refused(build, fact, tokenizer):
    with pytest.raises(HeadcountError, match=fact):
        find_roles(build(), tokenizer=tokenizer)


def test_too_little_room_is_refused(tokenizer):
    with pytest.raises(HeadcountError, match=r"\b8 tokens\b.*\b16\b"):
        find_roles(zoo.build_generator("gpt2"), tokenizer=tokenizer, max_length=8)
    with pytest.raises(HeadcountError, match="tokenizer"):
        find_roles(zoo.build_generator("gpt2"))
