"""evaluate in shards: the same bits as in one piece, nothing computed twice, an interruption survived."""

import numpy as np
import pytest

from headcount import Classification, anatomy, evaluate
from headcount.engine import shards as shards_module
from headcount.engine.shards import cut_shards
from headcount.errors import HeadcountError, RunConflict
from headcount.evaluation.sweep import Evaluation
from headcount.runs import RunDirectory
from headcount.tasks.text import word_tokenizer
from tiny_models import bert

WORDS = "a fine dull film was seen by all of us"


@pytest.fixture
def task():
    rows = [{"text": " ".join(WORDS.split()[: 1 + place % 9]), "label": place % 2} for place in range(23)]
    return Classification(rows, word_tokenizer(WORDS))


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(shards_module, "WORK", 6e6)


def masks(model):
    return [(), *([head] for head in anatomy(model).heads)]


def test_shards_give_the_same_bits(task, tmp_path, small_shards):
    model = bert()
    whole = evaluate(model, task, masks(model), tokens=32)
    cut = evaluate(model, task, masks(model), run=tmp_path, tokens=32)
    assert len(list((tmp_path / "outcomes").iterdir())) > 2
    assert np.array_equal(whole.values, cut.values)


def test_finished_shards_are_not_computed_again(task, tmp_path, small_shards, monkeypatch, caplog):
    model = bert()
    calls = []
    original = Evaluation.__call__

    def interrupted(*args, **kwargs):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)
        return original(*args, **kwargs)

    monkeypatch.setattr(Evaluation, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, task, masks(model), run=tmp_path, tokens=32)
    assert len(list((tmp_path / "outcomes").iterdir())) == 2
    calls.clear()
    monkeypatch.setattr(Evaluation, "__call__", lambda *args, **kwargs: calls.append(1) or original(*args, **kwargs))
    with caplog.at_level("INFO", logger="headcount"):
        resumed = evaluate(model, task, masks(model), run=tmp_path, tokens=32)
    total = len(cut_shards(task.lengths, len(masks(model)), 32, model))
    assert f"resuming: 2 of {total} shards done" in caplog.messages
    assert len(calls) == total - 2
    assert np.array_equal(resumed.values, evaluate(model, task, masks(model), tokens=32).values)


def test_evaluations_of_one_run_resume_under_their_own_names(task, tmp_path, monkeypatch):
    """Two evaluations in one open directory, interrupted in the second; and a third, by mistake under the same name."""
    monkeypatch.setattr(shards_module, "WORK", 1.0)  # a batch is a shard
    model = bert()
    first, second = [(), ["encoder.0.0"]], [(), ["encoder.1.1"]]
    calls = []
    original = Evaluation.__call__
    total = len(cut_shards(task.lengths, 2, 32, model))
    assert total > 2

    def counted(self, *args, **kwargs):
        if len(calls) == total + 1:
            raise KeyboardInterrupt
        calls.append(self.masks)
        return original(self, *args, **kwargs)

    def both():
        with RunDirectory(tmp_path, {"what": "both"}).open() as run:
            return [evaluate(model, task, m, run=run, name=n, tokens=32) for n, m in (("a", first), ("b", second))]

    monkeypatch.setattr(Evaluation, "__call__", counted)
    with pytest.raises(KeyboardInterrupt):
        both()
    calls[:] = [None] * (total + 2)  # past the interruption
    resumed = both()
    assert len(calls) == total + 2 + total - 1  # all shards of the second but the one that was finished
    for outcomes, masks in zip(resumed, (first, second), strict=True):
        assert np.array_equal(outcomes.values, evaluate(model, task, masks, tokens=32).values)
    with RunDirectory(tmp_path, {"what": "both"}).open() as run:
        mistaken = evaluate(model, task, second, run=run, name="a", tokens=32)
    assert np.array_equal(mistaken.values, resumed[1].values)


def test_a_damaged_shard_is_computed_again(task, tmp_path, small_shards):
    model = bert()
    first = evaluate(model, task, masks(model), run=tmp_path, tokens=32)
    victim = sorted((tmp_path / "outcomes").iterdir())[1]
    victim.write_bytes(victim.read_bytes()[:-3])
    again = evaluate(model, task, masks(model), run=tmp_path, tokens=32)
    assert np.array_equal(first.values, again.values)


def test_another_model_in_the_same_directory_is_refused(task, tmp_path):
    evaluate(bert(), task, [()], run=tmp_path)
    other = bert()
    other.classifier.bias.data += 1
    with pytest.raises(RunConflict, match=r"weights"):
        evaluate(other, task, [()], run=tmp_path)


def test_mean_fill_and_its_name(task):
    model = bert()
    zero, mean = (evaluate(model, task, masks(model), fill=fill) for fill in ("zero", "mean"))
    assert np.array_equal(zero.values[0], mean.values[0])
    assert not np.array_equal(zero.values[1:], mean.values[1:])
    with pytest.raises(HeadcountError, match="did you mean 'mean'"):
        evaluate(model, task, masks(model), fill="meen")


def test_progress_counts_over_all_shards(task, tmp_path, small_shards):
    seen = []
    model = bert()
    evaluate(model, task, masks(model), run=tmp_path, tokens=32, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_shards_hold_everything_once():
    lengths = [1 + place % 7 for place in range(100)]
    shards = cut_shards(lengths, masks=10_000, tokens=16)
    assert sorted(index for shard in shards for index in shard) == list(range(100))
    assert len(shards) > 1
