"""evaluate: masks, scores, memory of nothing but outcomes, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zoo
from headcount import Classification, LanguageModeling, anatomy, evaluate, masked, runs
from headcount.engine import Local, batches_by_length, using
from headcount.engine import shards as shards_module
from headcount.errors import HeadcountError
from headcount.tasks.text import word_tokenizer
from probe import Probe
from tiny_models import bert, gpt

WORDS = "a fine dull film was seen by all of us"
TEXTS = ["a fine film", "a dull film was seen by all of us", "seen", "us all", "by fine us"]


def classification(metric="accuracy"):
    rows = [{"text": text, "label": place % 2} for place, text in enumerate(TEXTS)]
    return Classification(rows, word_tokenizer(WORDS), metric=metric)


@pytest.mark.parametrize("metric", ["accuracy", "f1", "matthews", "loss"])
def test_classification_outcomes_agree_with_the_reference(metric):
    model, task = bert(), classification(metric)
    masks = [(), *((head,) for head in anatomy(model).heads)]
    fast, plain = evaluate(model, task, masks), evaluate(model, task, masks, fast=False)
    assert np.abs(fast.values - plain.values).max() < 1e-5
    assert np.array_equal(fast.values[..., :2], plain.values[..., :2])
    assert fast.scores().shape == (len(masks),)
    assert fast.score() == pytest.approx(float(fast.scores()[0]))
    assert fast.score([anatomy(model).heads[3]]) == pytest.approx(float(fast.scores()[4]))


def test_masks_of_neurons_and_sublayers_agree_with_the_reference():
    """One site: masked plainly; several: a pruned copy; heads of one site: replayed. Whole or with means."""
    model, task = bert(), classification("loss")
    masks = [[], "encoder_ffn.0.3", "encoder_ffn.1", "encoder.0", "encoder.1.2,encoder_ffn.0.0-9", "encoder.1"]
    fast, plain = evaluate(model, task, masks), evaluate(model, task, masks, fast=False)
    assert np.abs(fast.values - plain.values).max() < 1e-5
    assert len({value.tobytes() for value in plain.values}) == len(masks)
    with masked(model, off="encoder_ffn.1"):  # a mask of neurons around it is kept
        around = evaluate(model, task, [[], ["encoder.0.1"]])
    assert np.abs(around.values[0] - plain.values[2]).max() < 1e-5
    assert np.abs(around.values[1] - evaluate(model, task, ["encoder.0.1,encoder_ffn.1"]).values[0]).max() < 1e-5
    means = evaluate(model, task, masks, fill="mean")
    assert np.abs(means.values[0] - plain.values[0]).max() < 1e-5
    assert all(not np.allclose(one, other) for one, other in zip(means.values[1:], plain.values[1:], strict=True))
    with pytest.raises(HeadcountError, match=r"encoder_ffn\.0\.30-32: .*0-31"):
        evaluate(model, task, ["encoder_ffn.0.30-32"])


def test_language_modelling_outcomes_agree_with_the_reference():
    model = gpt()
    task = LanguageModeling([{"text": text} for text in TEXTS], word_tokenizer(WORDS), text="text", masked=False)
    masks = [(), *((head,) for head in anatomy(model).heads)]
    fast, plain = evaluate(model, task, masks), evaluate(model, task, masks, fast=False)
    assert np.abs(fast.values - plain.values).max() < 1e-4


def test_outcomes_do_not_depend_on_the_batches():
    model, task = bert(), classification("loss")
    one, many = (evaluate(model, task, [(), ["encoder.0.1"]], tokens=size) for size in (1, 10_000))
    assert np.abs(one.values - many.values).max() < 1e-5


def test_masks_in_any_order_and_twice():
    model, task = bert(), classification("loss")
    heads = anatomy(model).heads
    outcomes = evaluate(model, task, [[heads[5]], [], [heads[5]], "encoder.1.1"])
    assert np.array_equal(outcomes.values[0], outcomes.values[2])
    assert np.array_equal(outcomes.values[0], outcomes.values[3])
    assert not np.array_equal(outcomes.values[0], outcomes.values[1])


def test_without_masks_it_is_the_whole_model():
    model, task = bert(), classification()
    outcomes = evaluate(model, task)
    assert outcomes.masks == (frozenset(),)
    assert outcomes.values.shape == (1, len(task), 3)


def test_training_mode_is_restored_and_dropout_is_off():
    model, task = bert(hidden_dropout_prob=0.5), classification("loss")
    model.train()
    first, second = (evaluate(model, task, [(), ["encoder.0.0"]]) for _ in range(2))
    assert model.training
    assert np.array_equal(first.values, second.values)


def test_a_mask_for_another_model_is_refused():
    with pytest.raises(HeadcountError, match="encoder layers are 0-1"):
        evaluate(bert(), classification(), [["encoder.7.0"]])
    with pytest.raises(HeadcountError, match="no 'cross' attention"):
        evaluate(bert(), classification(), [["cross.0.0"]])


def test_an_unknown_mask_has_no_outcomes():
    outcomes = evaluate(bert(), classification())
    with pytest.raises(HeadcountError, match=r"no outcomes for encoder\.0\.0"):
        outcomes.of([anatomy(bert()).heads[0]])


def test_progress_rises_to_one():
    seen = []
    model = zoo.build("bert")
    evaluate(model, Probe("bert", model), [(), ["encoder.0.1"], ["encoder.0.1", "encoder.1.1"]], progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)


def test_near_ties_are_counted():
    model, task = bert(), classification()
    model.classifier.weight.data.zero_()
    model.classifier.bias.data.zero_()  # both classes always equally good
    outcomes = evaluate(model, task, [(), ["encoder.0.0"], ["encoder.0.1"]])
    assert outcomes.near_ties == 2 * len(task)


def test_signature_names_model_data_and_versions():
    signature = evaluate(bert(), classification()).signature
    assert signature["task"]["n"] == len(TEXTS)
    assert len(signature["model"]["fingerprint"]) == 16
    assert set(signature["versions"]) == {"headcount", "torch", "transformers"}


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(1, 200))
def test_batches_hold_everything_once_within_the_budget(lengths, tokens):
    batches = batches_by_length(lengths, tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(1, *(lengths[index] for index in batch)) <= tokens


def test_evaluate_inside_a_mask_measures_the_masked_model():
    model, task = bert(), classification("loss")
    masks = [(), ["encoder.0.0"], ["encoder.1.2"]]
    with masked(model, off=["encoder.0.1", "encoder.1.0"]):
        fast, plain = evaluate(model, task, masks), evaluate(model, task, masks, fast=False)
    both = evaluate(model, task, [["encoder.0.1", "encoder.1.0", "encoder.0.0"]])
    assert np.abs(fast.values - plain.values).max() < 1e-5
    assert np.abs(fast.values[1] - both.values[0]).max() < 1e-5


@pytest.mark.parametrize(("masks", "named"), [([], r"\[\]"), ("encoder.0.0", r"encoder\.0\.0"), ([0], "0")])
def test_masks_that_are_not_a_list_of_sets_are_refused(masks, named):
    with pytest.raises(HeadcountError, match=named):
        evaluate(bert(), classification(), masks)


class Once(Local):
    """Counts the shards that it does."""

    def __init__(self):
        self.shards = 0

    def run(self, work, model, data, shards, progress=None):
        self.shards += len(shards)
        yield from super().run(work, model, data, shards, progress)


def test_an_engine_that_is_named_does_the_work(monkeypatch):
    monkeypatch.setattr(shards_module, "WORK", 1.0)
    model, task, engine, around = bert(), classification("loss"), Once(), Once()
    here = evaluate(model, task, [(), ["encoder.0.1"]], tokens=16)
    with using(around):
        there = evaluate(model, task, [(), ["encoder.0.1"]], tokens=16, engine=engine)
        evaluate(model, task, tokens=16)
    assert np.array_equal(here.values, there.values)
    assert engine.shards == len(batches_by_length(task.lengths, 16)) == around.shards


def test_model_and_data_are_fingerprinted_once_however_many_shards(monkeypatch, tmp_path):
    monkeypatch.setattr(shards_module, "WORK", 1.0)
    calls = []
    of_model, of_task = runs.fingerprint, Classification.signature
    monkeypatch.setattr(runs, "fingerprint", lambda model: calls.append("model") or of_model(model))
    monkeypatch.setattr(Classification, "signature", lambda task: calls.append("data") or of_task(task))
    evaluate(bert(), classification(), [(), ["encoder.0.1"]], fill="mean", tokens=16, run=tmp_path)
    assert len(list((tmp_path / "outcomes").iterdir())) > 4
    assert sorted(calls) == ["data", "model"]
