"""`track`: curves and orders of several checkpoints, against the pieces it is made of; refusals by name."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import tiny_models
from headcount import evaluate, importance, load, pruning_curve, remove, report, save, track
from headcount.dynamics import Dynamics, TrackedCheckpoint, in_order, read_tracked
from headcount.errors import BadCheckpoint, BadData, HeadcountError, RunConflict
from headcount.runs import read_run
from headcount.tasks.metrics import CLASSIFICATION
from toy_jobs import classification


@pytest.fixture(scope="module")
def epochs(tmp_path_factory):
    """Three checkpoints; the second is the first, a little moved; the third the second, a little moved."""
    root = tmp_path_factory.mktemp("run")
    model = tiny_models.bert(pad_token_id=0)
    for place, number in enumerate((1, 2, 10)):
        torch.manual_seed(place)
        with torch.no_grad():
            for weight in model.parameters():
                weight += 0.05 * place * torch.randn_like(weight)
        save(model, root / f"epoch-{number}")
    return root


@pytest.fixture(scope="module")
def tasks():
    return classification(start=1), classification(start=0)  # task, score_task


@pytest.fixture(scope="module")
def tracked(epochs, tasks):
    return track([f"{epochs}/epoch-*"], *tasks, step=0.25, orders=2)


def test_each_checkpoint_is_scored_and_pruned_on_its_own(tracked, epochs, tasks):
    assert [one.name for one in tracked.checkpoints] == ["epoch-1", "epoch-2", "epoch-10"]
    task, score_task = tasks
    for one in tracked.checkpoints:
        model = load(epochs / one.name)
        scores = importance(model, score_task)
        assert one.importance == pytest.approx({str(head): value for head, value in scores.normalized().items()})
        ours = [point for point in one.points if point.method == "gradient"]
        assert [point.pruned for point in ours] == [0, 0.25, 0.5, 0.75, 1]
        assert one.base == ours[0].score == evaluate(model, task).score()
        assert ours[2].removed == [str(head) for head in scores.order()[:4]]
        assert ours[2].score == pytest.approx(evaluate(remove(model, ours[2].removed), task).score())
        assert ours[2].relative == pytest.approx(ours[2].score / one.base)
        assert ours[2].low <= ours[2].score <= ours[2].high


def test_random_orders_are_averaged(tracked, epochs, tasks):
    model = load(epochs / "epoch-2")
    curves = [pruning_curve(model, tasks[0], importance(model, tasks[1], "random", seed=seed), 0.25) for seed in (0, 1)]
    half = next(p for p in tracked.checkpoints[1].points if p.method == "random" and p.pruned == 0.5)
    scores = [curve.points[2].score for curve in curves]
    assert half.score == pytest.approx(np.mean(scores))
    assert (half.low, half.high) == (min(scores), max(scores))
    assert half.removed is None


def test_advantage_is_the_mean_gap_between_the_curves(tracked):
    for one in tracked.checkpoints:
        relative = {(point.method, point.pruned): point.relative for point in one.points}
        gaps = [relative["gradient", x] - relative["random", x] for x in (0.25, 0.5, 0.75)]
        assert one.advantage == pytest.approx(np.mean(gaps))


def test_rank_correlations(tracked):
    first, second, last = ([*one.importance.values()] for one in tracked.checkpoints)
    assert tracked.with_next == pytest.approx([spearmanr(first, second)[0], spearmanr(second, last)[0]])
    assert tracked.with_last == pytest.approx([spearmanr(first, last)[0], spearmanr(second, last)[0]])
    content = tracked.to_json()
    assert set(content["checkpoints"][0]) >= {"name", "base", "points"}
    assert set(content["checkpoints"][0]["points"][0]) >= {"pruned", "removed", "method", "score", "low", "relative"}


@pytest.mark.parametrize(
    ("orders", "settled", "words"),
    [
        (["abcd", "dcba", "abcd", "abcd"], "2", "settled at 2"),
        (["abcd", "abcd", "dcba", "abcd"], None, "r -1.00"),
        (["abcd", "abcd"], "0", "settled at 0"),
        (["abcd"], None, "one checkpoint"),
    ],
)
def test_when_the_order_settles(orders, settled, words):
    shots = [
        TrackedCheckpoint(str(place), 1.0, {head: float(order.index(head)) for head in "abcd"}, (), 0.0)
        for place, order in enumerate(orders)
    ]
    found = Dynamics(tuple(shots), CLASSIFICATION["accuracy"])
    assert found.settled == settled
    assert words in found.in_words()


def test_a_finished_checkpoint_is_not_computed_again(epochs, tasks, tmp_path, monkeypatch, tracked):
    def ask():
        return track([f"{epochs}/epoch-*"], *tasks, step=0.25, orders=2, run=tmp_path / "run")

    seen = []

    def stopping(model, task, *rest, **more):
        seen.append(Path(model.config._name_or_path).name)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return pruning_curve(model, task, *rest, **more)

    monkeypatch.setattr("headcount.dynamics.pruning_curve", stopping)
    with pytest.raises(KeyboardInterrupt):
        ask()
    half = read_run(tmp_path / "run")
    assert (half["finished"], [one["name"] for one in half["checkpoints"]]) == (False, ["epoch-1"])
    assert "1 checkpoint" in report(tmp_path / "run", tmp_path / "report.html").read_text()
    assert ask().to_json() == tracked.to_json()
    assert read_run(tmp_path / "run")["finished"]
    assert seen == ["epoch-1", "epoch-2", "epoch-2", "epoch-10"]
    with pytest.raises(RunConflict, match="checkpoints"):
        track([epochs / "epoch-1"], *tasks, run=tmp_path / "run")


@pytest.mark.parametrize(
    ("wrong", "is_kept"),
    [({}, True), ({"removed": None}, True), ({"removed": [[["encoder.0.0"]]]}, False), ({"method": []}, False)],
)
def test_a_checkpoint_that_makes_no_sense_is_computed_again(wrong, is_kept):
    numbers = {"pruned": 0.5, "score": 0.5, "low": 0.4, "high": 0.6, "relative": 0.9}
    point = {"method": "gradient", "removed": ["encoder.0.0"], **numbers, **wrong}
    content = {"points": [point], "importance": {"encoder.0.0": 0.5}, "base": 0.6, "advantage": 0.1}
    kept = {"json": np.frombuffer(json.dumps(content).encode(), np.uint8)}
    assert (read_tracked("one", kept, {"encoder.0.0"}) is not None) == is_kept


def test_numbers_decide_the_order_of_neighbours(tmp_path):
    for number in (1, 10, 2):
        (tmp_path / f"epoch-{number}").mkdir()
    expected = [str(tmp_path / f"epoch-{number}") for number in (1, 2, 10)]
    assert in_order([tmp_path / "epoch-*"]) == expected
    assert in_order([*reversed(expected), tmp_path]) == [*expected, str(tmp_path)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_attention_heads": 2}, "encoder.0 is 2 heads of 8, not 4 heads of 4"),
        ({"num_hidden_layers": 1}, "encoder.1 is missing, not 4 heads of 4"),
        ({"intermediate_size": 24}, r"intermediate.dense.weight is \[24, 16\], not \[32, 16\]"),
    ],
)
def test_checkpoints_of_different_shapes_are_refused_by_name(epochs, tasks, tmp_path, changes, words):
    save(tiny_models.bert(pad_token_id=0, **changes), tmp_path / "other")
    with pytest.raises(BadCheckpoint, match=rf"other and .*epoch-1 .*{words}"):
        track([epochs / "epoch-1", tmp_path / "other"], *tasks)


def test_other_refusals(epochs, tasks, tmp_path):
    for given, words in (
        ([], "one directory or more"),
        ([tmp_path / "none-*"], "none-"),
        ([epochs / "epoch-1", epochs / "epoch-1"], "named twice"),
        ([epochs / "epoch-1", tmp_path / "missing"], "missing"),
    ):
        with pytest.raises(BadCheckpoint, match=words):
            track(given, *tasks)
    with pytest.raises(HeadcountError, match="0 random orders"):
        track([epochs / "epoch-1"], *tasks, orders=0)
    with pytest.raises(BadData, match=r"24 of 24 .* the score data"):
        track([epochs / "epoch-1"], tasks[0], tasks[0])


def test_shared_rows_can_be_dropped_or_allowed(epochs, tasks, tmp_path):
    task, score_task = classification(start=0, n=30), tasks[1]  # 24 of the 30 rows are in both
    ask = {"step": 0.5, "orders": 1}
    dropped = track([epochs / "epoch-1"], task, score_task, **ask, overlap="drop", run=tmp_path / "run")
    apart = track([epochs / "epoch-1"], task.subset(range(24, 30)), score_task, **ask)
    assert dropped.checkpoints == apart.checkpoints
    assert dropped.remarks[0].startswith("24 of 30")
    assert read_run(tmp_path / "run")["n"] == 6
    assert read_run(tmp_path / "run")["remarks"] == list(dropped.remarks)
    assert track([epochs / "epoch-1"], task, score_task, **ask, overlap="allow").remarks == ()
