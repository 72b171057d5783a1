"""Curves: really pruned copies, intervals, kinds, re-estimation, and data that must be kept apart."""

import numpy as np
import pytest

from headcount import evaluate, importance, pruning_curve, remove
from headcount.errors import BadData, HeadcountError, RunConflict
from headcount.heads import Head, counts
from headcount.pruning import curve as curve_module
from headcount.pruning.search_methods import removable
from headcount.scoring import Scores
from headcount.structure import anatomy
from toy_jobs import JOBS, classification, language, translation


@pytest.fixture(scope="module")
def model():
    return JOBS["classifier"][0]()


def test_points_are_the_scores_of_pruned_copies(model):
    scores, task = importance(model, classification(0, 12)), classification(1, 20)
    curve = pruning_curve(model, task, scores, step=0.25)
    order = scores.order()
    assert [len(point.removed) for point in curve.points] == [0, 2, 4, 6, 8]
    for point in curve.points:
        assert list(point.removed) == order[: len(point.removed)]
        assert point.score == evaluate(remove(model, point.removed), task).score()
        assert point.low <= point.score <= point.high
        assert point.change == pytest.approx(point.score - curve.points[0].score)
        assert point.relative == pytest.approx(point.score / curve.points[0].score)
        assert point.statistics.shape[0] == len(task)
    assert curve.points[0].change_low == curve.points[0].change_high == 0


def test_several_methods_and_kinds_in_one_call():
    build, _ = JOBS["translator"]
    model, task = build(), translation(1, 5, metric="loss")
    scores = [importance(model, translation(0, 6, metric="loss"), name) for name in ("gradient", "random")]
    curves = pruning_curve(model, task, scores, step=0.5, kinds=["encoder", "cross"])
    assert [(c.method, c.kind) for c in curves] == [
        ("gradient", "encoder"),
        ("gradient", "cross"),
        ("random", "encoder"),
        ("random", "cross"),
    ]
    for curve in curves:
        assert {head.kind for head in curve.points[-1].removed} == {curve.kind}
        assert len(curve.points[-1].removed) == 8
        assert curve.to_json()["points"][1]["pruned"] == 0.5


def test_re_estimation_scores_the_heads_that_are_left(model):
    scoring, task = classification(0, 12), classification(1, 12)
    scores = importance(model, scoring)
    curve = pruning_curve(model, task, scores, step=2, reestimate=True, score_task=scoring)
    removed = curve.points[1].removed
    assert list(removed) == scores.order()[:2]
    again = importance(remove(model, removed), scoring).order()
    assert list(curve.points[2].removed) == [*removed, *again[:2]]
    with pytest.raises(HeadcountError, match="score_task"):
        pruning_curve(model, task, scores, reestimate=True)


def test_keep_at_least_leaves_heads_everywhere(model):
    scores, task = importance(model, classification(0, 12)), classification(1, 8)
    curve = pruning_curve(model, task, scores, step=0.5, keep_at_least=1)
    left = anatomy(remove(model, curve.points[-1].removed))
    assert [len(site.kept) for site in left.sites] == [1, 1]
    with pytest.raises(HeadcountError, match=r"4; .*keep_at_least="):
        pruning_curve(model, task, scores, keep_at_least=4)


def test_the_same_rows_in_both_data_are_refused(model):
    scoring, task = classification(0, 12), classification(0, 20)
    with pytest.raises(BadData, match=r"12 of 20 .* the score data"):
        pruning_curve(model, task, importance(model, scoring))
    assert len(pruning_curve(model, task, importance(model, scoring), 0.5, overlap="allow").points) == 3
    assert len(pruning_curve(model, task, importance(model, scoring, "random"), 0.5).points) == 3


def test_shared_rows_can_be_dropped(model):
    scoring, task = classification(0, 12), classification(0, 20)
    scores = importance(model, scoring)
    curve = pruning_curve(model, task, scores, 0.5, overlap="drop")
    assert [point.score for point in curve.points] == [
        point.score for point in pruning_curve(model, task.subset(range(12, 20)), scores, 0.5).points
    ]
    assert curve.signature["task"]["n"] == 8
    assert "12 of 20" in curve.remarks[0]


@pytest.mark.parametrize("reestimate", [False, True])
def test_an_interrupted_curve_resumes(model, tmp_path, monkeypatch, reestimate):
    scoring, task = classification(0, 12), classification(1, 20)
    scores = [importance(model, scoring), importance(model, scoring, "random", seed=1)]
    evaluated, scored = [], []  # what was computed, not only asked for
    statistics, estimate = task.statistics, importance
    task.statistics = lambda *given: evaluated.append(1) or statistics(*given)
    monkeypatch.setattr(curve_module, "importance", lambda *given, **o: scored.append(1) or estimate(*given, **o))

    def ask(**more):
        evaluated.clear(), scored.clear()
        curves = pruning_curve(model, task, scores, 2, reestimate=reestimate, score_task=scoring, **more)
        return [[(point.removed, point.score) for point in curve.points] for curve in curves]

    def interrupt(share):
        if share > 0.6:  # in the second of the two curves
            raise KeyboardInterrupt

    undisturbed = ask()
    work = len(evaluated), len(scored)
    assert work == (1 + 2 * 4, 2 * 3 * reestimate)
    with pytest.raises(KeyboardInterrupt):
        ask(run=tmp_path / "run", progress=interrupt)
    before = len(evaluated), len(scored)
    assert 0 < before[0] < work[0]
    assert ask(run=tmp_path / "run") == undisturbed
    both_ends = 1  # without any head, both curves have the same model: measured once
    assert before[0] + len(evaluated) == work[0] - both_ends
    assert before[1] + len(scored) == work[1]
    assert ask(run=tmp_path / "run") == undisturbed
    assert (len(evaluated), len(scored)) == (0, 0)
    with pytest.raises(RunConflict, match=r"step .*2.*4"):
        pruning_curve(model, task, scores, 4, reestimate=reestimate, score_task=scoring, run=tmp_path / "run")


def test_scores_of_neurons_are_refused(model):
    scores = importance(model, classification(0, 12), units="heads,neurons")
    with pytest.raises(HeadcountError, match=r"encoder_ffn\.0\.0"):
        pruning_curve(model, classification(1, 12), scores)


def test_scores_of_another_model_are_refused(model):
    task = classification(1, 8)
    heads = (*anatomy(model).heads, Head("encoder", 9, 0))
    with pytest.raises(HeadcountError, match=r"encoder.* 0-1"):
        pruning_curve(model, task, Scores(heads, np.ones((1, 9)), "random"))
    with pytest.raises(HeadcountError, match=r"encoder\.1\.3"):
        pruning_curve(model, task, Scores(heads[:7], np.ones((1, 7)), "random"))
    scores = importance(model, classification(0, 12))
    with pytest.raises(HeadcountError, match="removed"):
        pruning_curve(remove(model, scores.order()[:1]), task, scores)


def test_a_metric_that_grows_worse_upwards():
    build, _ = JOBS["causal"]
    model = build()
    curve = pruning_curve(model, language(1, 6), importance(model, language(0, 6)), step=0.5)
    assert curve.metric.name == "perplexity"
    assert curve.points[1].change == pytest.approx(curve.points[1].score - curve.points[0].score)


def test_schedule():
    assert counts(72, 0.1) == [0, 7, 14, 22, 29, 36, 43, 50, 58, 65, 72]
    assert counts(3, 0.1) == [0, 1, 2, 3]
    for bad in (0, -0.1, 1.5):
        with pytest.raises(HeadcountError, match=f"{bad:g} .*step="):
            counts(10, bad)
    order = [Head("encoder", 0, i) for i in range(3)] + [Head("encoder", 1, 0)]
    assert removable(order, 1) == order[:2]
    assert removable(order[:1], 1, present=order) == order[:1]
