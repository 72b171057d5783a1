"""Roles that were put into the weights are found, all of them and no others."""

import pytest
import torch

from headcount import remove
from headcount.roles import Thresholds, find_roles
from planted_roles import PLANTED, RARE, decoder, encoder, sentences

FEW = Thresholds(frequent=48)  # verbs, nouns and fillers


@pytest.fixture(scope="module")
def data():
    return sentences()


@pytest.fixture(scope="module")
def planted(data):
    return encoder(data)


def names(roles):
    return {(str(role.head), role.role, role.detail) for role in roles.found}


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_planted_roles_are_found_and_no_other(planted, data, kernel):
    model, tokenizer = planted
    model.set_attn_implementation(kernel)
    roles = find_roles(model, data, tokenizer, thresholds=FEW)
    assert names(roles) == PLANTED
    for role in roles.found:
        assert role.score > 0.99
        assert role.low <= role.score <= role.high
        assert role.baseline < 0.5
    said = [remark for remark in roles.remarks if remark.startswith(f"{kernel} ")]
    assert len(said) == (kernel == "sdpa")  # sdpa gives no attention maps


def test_frequencies_of_other_texts_say_which_word_is_rare(planted, data):
    """Where the planted words are as frequent as any, the head that points at them points at nothing rare."""
    model, tokenizer = planted
    roles = find_roles(model, data, tokenizer, thresholds=Thresholds(frequent=0))
    best = {role.detail: role for role in roles.best if role.role == "rare"}
    assert str(best["rarest"].head) == "encoder.0.2"
    assert best["two rarest"].score >= best["rarest"].score
    assert best["two rarest"].baseline > best["rarest"].baseline
    often = [{"text": " ".join(RARE)}] * 500
    other = find_roles(model, data, tokenizer, thresholds=Thresholds(frequent=0), frequencies=often)
    scores = {str(role.head): role.score for role in other.best if role.role == "rare" and role.detail == "rarest"}
    assert "encoder.0.2" not in scores
    assert other.signature["frequencies"] != roles.signature["frequencies"]


def test_what_is_left_keeps_its_role(planted, data):
    model, tokenizer = planted
    smaller = remove(model, ["encoder.0.1", "encoder.0.4", "encoder.0.6"])
    assert names(find_roles(smaller, data, tokenizer, thresholds=FEW)) == {
        one for one in PLANTED if one[0] not in ("encoder.0.1", "encoder.0.4")
    }


def test_a_baseline_of_the_usual_position(planted, data):
    """The baseline of a relation is the share of its most frequent distance."""
    model, tokenizer = planted
    found = next(r for r in find_roles(model, data, tokenizer, thresholds=FEW).found if r.role == "syntactic")
    distances = [dependent - head for one in data for dependent, head, name in one.relations if name == "obj"]
    assert found.baseline == pytest.approx(max(map(distances.count, distances)) / len(distances))
    assert found.cases == len(distances) == 100


def test_thresholds_can_be_set(planted, data):
    model, tokenizer = planted
    strict = find_roles(model, data, tokenizer, thresholds=Thresholds(syntactic=0.99, frequent=48))
    assert names(strict) == {one for one in PLANTED if one[1] != "syntactic"}
    loose = Thresholds(positional=0.01, syntactic=0.0, rare=0.0, idle=0.0, frequent=48)
    assert len(names(find_roles(model, data, tokenizer, thresholds=loose))) > 20


def test_a_decoder_looks_back(data):
    model, tokenizer = decoder()
    roles = find_roles(model, data, tokenizer, thresholds=FEW)
    assert names(roles) == {("decoder.1.1", "positional", "-1"), ("decoder.1.2", "idle", "first")}
    backwards = sum(head < dependent for one in data for dependent, head, name in one.relations if name == "obj")
    best = {role.detail: role for role in roles.best if role.role == "syntactic"}
    assert best["obj dependent->head"].cases == backwards  # only what stands before can be looked at
    assert best["obj head->dependent"].cases == 100 - backwards


def test_training_mode_and_weights_stay_as_they_were(planted, data):
    model, tokenizer = planted
    model.train()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    find_roles(model, data[:20], tokenizer, thresholds=FEW)
    assert model.training
    model.eval()
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
