"""The whole job on tiny models: budgets, targets, data kept apart, recovery, and what is refused."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from headcount import evaluate, prune, remove
from headcount.errors import BadData, HeadcountError, RunConflict
from headcount.pruning import Pruned, Pruning, forecast
from headcount.pruning import search as search_module
from headcount.pruning.cut_size import Budget
from headcount.pruning.pipeline import unshowable
from headcount.pruning.splits import split_in_two
from headcount.stats import NonInferiority, noninferior
from headcount.structure import anatomy
from headcount.surgery import load, save
from headcount.tasks.metrics import CLASSIFICATION, LANGUAGE, TRANSLATION
from headcount.training import Recovery, recover
from toy_jobs import JOBS, classification, language, translation


@pytest.fixture(scope="module")
def model():
    return JOBS["classifier"][0]()


@pytest.mark.parametrize("job", JOBS)
def test_every_kind_of_model_can_be_pruned(job, tmp_path):
    build, make = JOBS[job]
    model, tasks = build(), [make(start, 8) for start in (0, 1, 2)]
    pruned = prune(model, *tasks, heads=0.5)
    total = len(anatomy(model).heads)
    assert len(pruned.removed) == total // 2 == total - pruned.left
    assert pruned.before == evaluate(model, tasks[2]).score()
    again = load(save(pruned.model, tmp_path / "small"))
    assert evaluate(again, tasks[2]).score() == pytest.approx(pruned.after)
    assert pruned.change == pytest.approx(pruned.after - pruned.before)
    assert pruned.low <= pruned.change <= pruned.high
    assert pruned.parameters_after < pruned.parameters_before
    text = pruned.report("small")
    assert f"{total // 2} of {total} heads removed (50%)" in text
    assert 'headcount.load("small")' in text
    assert pruned.speed is not None
    assert pruned.to_json()["left"] == pruned.left


def test_the_largest_cut_that_is_shown_to_be_within_the_budget(model):
    """Cuts are tested from small to large; the first that is not shown to be within the budget ends the search."""
    tasks = [classification(start, 24) for start in (0, 1, 2)]
    settings = {"method": "michel", "compensation": "none", "step": 1}
    for max_drop, confidence in ((25, 0.95), (20, 0.8), (10, 0.5)):
        pruned = prune(model, *tasks, max_drop=max_drop, confidence=confidence, **settings)
        base, metric = evaluate(model, tasks[1]).of(), tasks[1].metric
        tested = [
            noninferior(base, point.statistics, metric, max_drop / 100, level=confidence).shown for point in pruned.path
        ]
        assert [len(point.removed) for point in pruned.path] == list(range(1, len(tested) + 1))
        assert tested[:-1] == [True] * (len(tested) - 1)
        assert len(pruned.removed) == sum(tested) > 0
    everything = prune(model, *tasks, max_drop=100)
    assert everything.left == 0


@pytest.mark.parametrize("max_drop", [15, 40])
def test_cuts_that_are_decided_early_are_the_same_cuts(model, max_drop):
    """With and without early decisions: the same cut and the same verdict, and the chosen cut has seen everything."""
    tasks = [classification(start, size) for start, size in ((0, 24), (1, 400), (2, 24))]
    settings = {"method": "michel", "compensation": "none", "step": 1}
    early, late = (prune(model, *tasks, max_drop=max_drop, early=early, **settings) for early in (True, False))
    assert early.removed == late.removed
    assert (early.verdict, early.after) == (late.verdict, late.after)
    assert [point.removed for point in early.path] == [point.removed for point in late.path]
    chosen = next(point for point in early.path if set(point.removed) == set(early.removed))
    full = next(point for point in late.path if point.removed == chosen.removed)
    assert (chosen.examples, chosen.score) == (None, full.score)
    assert any(point.examples is not None for point in early.path)
    for point, whole in zip(early.path, late.path, strict=True):
        assert point.change_low <= whole.change <= point.change_high
        assert point.score - point.change == pytest.approx(whole.score - whole.change)
    assert [row.get("examples") for row in early.to_json()["tried"]] == [point.examples for point in early.path]


def test_data_that_is_too_small_for_the_budget_is_said_before_the_search(model, caplog):
    tasks = [classification(start, 24) for start in (0, 1, 2)]
    best = 100 * (1 - 0.05 ** (1 / 24))
    with pytest.raises(
        HeadcountError, match=rf"24 selection examples .* 1 point: {best:.2g} points .* 300 .*max_drop="
    ):
        prune(model, *tasks, max_drop=1)
    assert not caplog.records
    pruned = prune(model, *tasks, heads=1)  # a size needs no proof, but its verdict has a margin of one point
    (remark,) = [one for one in pruned.remarks if "cannot show" in one]
    assert f"24 test examples cannot show a drop of at most 1 point: {best:.2g} points" in remark
    assert remark in caplog.text
    assert not pruned.verdict.shown
    said = forecast(model, *tasks, Pruning(max_drop=1))
    assert [limit.split()[1] for limit in said["limits"]] == ["selection", "test"]
    assert all(limit in said["text"] for limit in said["limits"])
    assert forecast(model, *tasks, Pruning(max_drop=50))["limits"] == []


@pytest.mark.parametrize("metric", ["f1", "matthews", "loss"])
def test_what_the_data_can_show_is_in_the_unit_of_the_metric(metric):
    task = classification(1, 24, metric=metric)
    base = evaluate(JOBS["classifier"][0](), task).of()
    for points, said in ((0.5, True), (99, False)):
        budget = Budget.of(task.metric, points, float(task.metric.of(base)))
        assert bool(unshowable(budget, task.metric, base, 0.95, "test")) is said


def test_a_budget_that_cannot_be_met_says_what_can():
    build, _ = JOBS["causal"]
    tasks = [language(start, 10) for start in (0, 1, 2)]
    with pytest.raises(HeadcountError, match=r"10 selection examples .* 0%.*confidence="):
        prune(build(), *tasks, max_drop=0, method="michel", compensation="none")
    with pytest.raises(HeadcountError, match=r"10 selection examples .* 60%: \d\d0% is .* about \d+ are needed"):
        prune(build(), *tasks, max_drop=60, method="michel", compensation="none")
    with pytest.raises(HeadcountError, match=r"within 250 points on 10 .* without \d heads?, .* -?\d+\.\d+ points"):
        prune(build(), *tasks, max_drop=250, method="michel", compensation="none")
    with pytest.raises(HeadcountError, match=r"\(50% confidence\)") as refused:  # the observed drop decides
        prune(build(), *tasks, max_drop=0, confidence=0.5, method="michel", compensation="none")
    assert refused.value.advice == "allow a larger {max_drop}"
    with pytest.raises(HeadcountError, match=r"90\.0% of the parameters"):
        prune(build(), *tasks, params=0.9)
    with pytest.raises(HeadcountError, match="speedup of 1000"):
        prune(build(), *tasks, speedup=1000)
    with pytest.raises(HeadcountError, match=r"99 heads .* only 8"):
        prune(build(), *tasks, heads=99)


def test_parameters_as_a_target(model):
    tasks = [classification(start, 12) for start in (0, 1, 2)]
    pruned = prune(model, *tasks, params=0.1, units="heads", method="michel", compensation="none")
    assert pruned.parameters_after <= 0.9 * pruned.parameters_before
    one_more = remove(model, pruned.removed[:-1])
    fewest = min(
        sum(p.numel() for p in remove(model, [h for h in pruned.removed if h != head]).parameters())
        for head in pruned.removed
    )
    assert fewest > 0.9 * pruned.parameters_before
    assert len(anatomy(one_more).heads) == pruned.left + 1


def test_without_test_data_half_of_the_selection_data_is_held_out(model):
    select = classification(1, 24)
    pruned = prune(model, classification(0, 12), select, heads=2)
    assert pruned.test_n == 12
    assert "12 examples for selection, 12 for testing" in pruned.report()
    one, other = split_in_two(select, seed=3)
    assert sorted([*one.keys(), *other.keys()]) == sorted(select.keys())
    assert one.keys() != split_in_two(select, seed=4)[0].keys()


def test_data_is_kept_apart(model):
    one, other = classification(0, 12), classification(1, 12)
    for tasks, where in (
        ((one, one, other), "score data"),
        ((one, other, one), "score data"),
        ((one, other, other), "selection data"),
    ):
        with pytest.raises(BadData, match=f"12 of 12 .* the {where}"):
            prune(model, *tasks, heads=2)
    assert prune(model, one, one, one, heads=2, overlap="allow").test_n == 12
    with pytest.raises(BadData, match="accuracy and loss"):
        prune(model, one, other, classification(2, 12, metric="loss"), heads=2)


def test_shared_rows_are_dropped_from_the_later_data(model):
    score = classification(0, 12)
    select = joined(classification(1, 12), score.subset([3, 5]))
    test = joined(classification(2, 12), score.subset([7]), select.subset([0, 1, 2, 3]))
    with pytest.raises(BadData, match=r"2 of 14 .* the score data"):
        prune(model, score, select, test, heads=2)
    pruned = prune(model, score, select, test, heads=2, overlap="drop")
    apart = prune(model, score, classification(1, 12), classification(2, 12), heads=2)
    assert (pruned.removed, pruned.before, pruned.after) == (apart.removed, apart.before, apart.after)
    for remark, fact in zip(
        pruned.remarks, ("2 of 14", "1 of 17", "4 of 16", "12 test examples", "Only heads"), strict=True
    ):
        assert remark.startswith(fact)
        assert remark in pruned.report()
    with pytest.raises(BadData, match=r"all 12 .* the score data"):
        prune(model, score, score, test, heads=2, overlap="drop")


def joined(*tasks):
    """One task with the rows of several."""
    whole = tasks[0].subset(range(len(tasks[0])))
    for more in tasks[1:]:
        for name, values in more.features.items():
            whole.features[name] = [*whole.features[name], *values]
        for name in ("lengths", "labels", "content", "places"):
            setattr(whole, name, [*getattr(whole, name), *getattr(more, name)])
    return whole


def test_models_and_data_that_cannot_be_pruned(model):
    tasks = [classification(start, 12) for start in (0, 1, 2)]
    with pytest.raises(HeadcountError, match="removed"):
        prune(remove(model, anatomy(model).heads), *tasks, heads=2)
    one_class = tasks[0].subset([i for i, label in enumerate(tasks[0].labels) if label == 0])
    with pytest.raises(BadData, match="label 0"):
        prune(model, one_class, *tasks[1:], heads=2)
    with pytest.raises(HeadcountError, match=r"\b1 head\b.*uniform="):
        prune(model, *tasks, heads=1, uniform=True)


# A user's own metric: lower is better, in absolute points.
WORD_ERRORS = replace(CLASSIFICATION["accuracy"], name="word_errors", higher_is_better=False)


def pruned(metric, before, after, max_drop, found, n=100):
    """A result with these scores and this outcome of the test; nothing was removed."""
    return Pruned(
        JOBS["classifier"][0](), (), metric, before=before, after=after, change=after - before, low=0.0, high=0.0,
        max_drop=max_drop, verdict=found, test_n=n, parameters_before=1, parameters_after=1,
        flops_before=2, flops_after=1, saved={}, speed=None,
        settings=Pruning(max_drop=max_drop),
    )  # fmt: skip


def verdict(before, after, n, max_drop):
    """The verdict on models that are right `before` and `after` times out of `n`, in words, and as tested."""
    counted = np.ones((n, 1))
    right = [
        np.hstack([counted, (np.arange(n) < number)[:, None], counted]).astype(float) for number in (before, after)
    ]
    metric = CLASSIFICATION["accuracy"]
    found = noninferior(*right, metric, max_drop / 100)
    result = pruned(metric, before / n, after / n, max_drop, found, n)
    said = result.verdict_in_words()
    assert said in result.report().splitlines()
    assert said == result.to_json()["verdict"]
    return said, found


def test_the_verdict_says_what_was_shown():
    said, found = verdict(900, 895, 1000, max_drop=2)
    assert found.shown
    assert said == f"Non-inferior: drop ≤ 2 points, 95% confidence (one-sided bound {-100 * found.bound:.2f})."
    said, found = verdict(90, 89, 100, max_drop=2)
    assert not found.shown
    assert said.startswith("Not shown to be non-inferior: drop ≤ 2 points, 95% confidence ")
    assert f"(one-sided bound {-100 * found.bound:.2f})" in said
    assert f" {found.examples_needed:,} examples " in said
    said, found = verdict(90, 87, 100, max_drop=1)
    assert (found.shown, found.examples_needed) == (False, None)
    assert said.startswith("Not shown to be non-inferior: drop ≤ 1 point, ")
    assert "measured drop is 3.00 points" in said


@pytest.mark.parametrize(
    ("metric", "before", "bound", "max_drop", "words"),
    [
        (CLASSIFICATION["f1"], 0.9, 0.01, 0.5, "drop ≤ 0.5 points, 95% confidence (one-sided bound 0.00)"),
        (TRANSLATION["bleu"], 30.0, -0.7, 1, "drop ≤ 1 point, 95% confidence (one-sided bound 0.70)"),
        (LANGUAGE["perplexity"], 20.0, 0.3, 2, "rise ≤ 2%, 95% confidence (one-sided bound 1.50)"),
        (WORD_ERRORS, 0.1, 0.003, 0.5, "rise ≤ 0.5 points, 95% confidence (one-sided bound 0.30)"),
    ],
)
def test_the_verdict_has_its_budget_and_its_bound_in_points(metric, before, bound, max_drop, words):
    found = NonInferiority(shown=True, change=0.0, bound=bound, margin=1.0, examples_needed=None)
    said = pruned(metric, before, before, max_drop, found).verdict_in_words()
    assert said == f"Non-inferior: {words}."


def test_budgets_in_points():
    assert Budget.of(TRANSLATION["bleu"], 0.5, 30.0).allowed == 0.5
    assert Budget.of(CLASSIFICATION["matthews"], 1, 0.5).allowed == pytest.approx(0.01)
    worse_upwards = Budget.of(LANGUAGE["perplexity"], 1, 40.0)
    assert worse_upwards.allowed == pytest.approx(0.4)
    assert worse_upwards.drop(41.0) == pytest.approx(1.0)
    assert worse_upwards.in_points(1.0) == pytest.approx(2.5)


def test_recovery_learns_keeps_the_best_and_resumes(model, tmp_path):
    train, dev = classification(0, 30, metric="loss"), classification(1, 20, metric="loss")
    settings = Recovery(epochs=3, lr=3e-3, tokens=64, distill=0.5, seed=1)
    heads = ["encoder.0.1", "encoder.1.2"]

    def run(directory=None, stop_after=None):
        smaller = remove(model, heads)
        if stop_after is not None:
            with pytest.raises(KeyboardInterrupt):
                recover(smaller, train, dev, settings, whole=model, directory=directory, progress=interrupt(stop_after))
            smaller = remove(model, heads)
        scores = recover(smaller, train, dev, settings, whole=model, directory=directory)
        return smaller, scores

    whole, scores = run(tmp_path / "one")
    resumed, again = run(tmp_path / "two", stop_after=0.5)
    assert len(scores) == 4
    assert min(scores[1:]) < scores[0]
    assert again == scores
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))
    assert evaluate(whole, dev).score() == pytest.approx(min(scores))
    with pytest.raises(RunConflict, match=re.escape(str(tmp_path / "one"))):
        recover(remove(model, heads[:1]), train, dev, settings, whole=model, directory=tmp_path / "one")


def interrupt(after):
    def progress(share):
        if share > after:
            raise KeyboardInterrupt

    return progress


def test_recovery_within_the_job():
    build, _ = JOBS["translator"]
    tasks = [translation(start, 8, metric="perplexity") for start in (0, 1, 2)]
    pruned = prune(build(), *tasks, heads=0.5, recovery=Recovery(1, lr=1e-3, distill=1.0))
    assert len(pruned.recovery) == 2
    assert pruned.to_json()["recovery"] == list(pruned.recovery)


def test_recovery_settings_are_checked(model):
    for bad in ({"epochs": 0}, {"epochs": 1, "lr": 0.0}, {"epochs": 1, "distill": 2.0}):
        with pytest.raises(HeadcountError, match=list(bad)[-1]):
            Recovery(**bad)
    with pytest.raises(HeadcountError, match=r"whole=…"):
        recover(model, classification(0, 4), classification(1, 4), Recovery(1, distill=0.5))


def test_a_loss_that_is_not_finite_stops_the_recovery(model):
    smaller = remove(model, ["encoder.0.0"])
    with torch.no_grad():
        smaller.classifier.bias.fill_(float("inf"))
    task = classification(0, 4)
    task.statistics = lambda outputs, batch: torch.ones(len(batch), 3).double()
    with pytest.raises(HeadcountError, match=r"step 1 .*lr=…"):
        recover(smaller, classification(0, 4), task, Recovery(1))


def test_a_forecast_changes_nothing_and_names_every_step(model):
    tasks = [classification(start, 12) for start in (0, 1, 2)]
    plan = forecast(model, *tasks, Pruning(max_drop=0.5, recovery=Recovery(2)))
    assert [step["what"].split()[0] for step in plan["steps"]] == ["score", "try", "evaluate", "recover", "test"]
    assert plan["seconds"] == pytest.approx(sum(step["seconds"] for step in plan["steps"]))
    assert "drop at most 0.5 points" in plan["text"]
    assert len(anatomy(model).heads) == 8


def test_an_interrupted_search_by_one_order_resumes_in_that_order(model, tmp_path):
    tasks = [classification(start, 16) for start in (0, 1, 2)]
    settings = Pruning(max_drop=100, method="michel", step=1)
    undisturbed = prune(model, *tasks, settings=settings)

    def interrupt(what, share):
        if what == "searching" and share > 0.4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune(model, *tasks, settings=settings, run=tmp_path / "run", progress=interrupt)
    resumed = prune(model, *tasks, settings=settings, run=tmp_path / "run")
    assert [point.removed for point in resumed.path] == [point.removed for point in undisturbed.path]


def test_an_interrupted_search_resumes_to_the_same_result(model, tmp_path, monkeypatch):
    tasks = [classification(start, 16) for start in (0, 1, 2)]
    undisturbed = prune(model, *tasks, max_drop=40)
    steps = len(undisturbed.path)

    def interrupt(what, share):
        if what == "searching" and share > 0.4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prune(model, *tasks, max_drop=40, run=tmp_path / "run", progress=interrupt)
    kept = len(list((tmp_path / "run" / "outcomes").glob("choice-*")))
    assert 0 < kept < steps

    counted = []
    scored = search_module.head_gradients
    monkeypatch.setattr(search_module, "head_gradients", lambda *args: counted.append(1) or scored(*args))
    resumed = prune(model, *tasks, max_drop=40, run=tmp_path / "run")
    assert resumed.removed == undisturbed.removed
    assert [point.score for point in resumed.path] == [point.score for point in undisturbed.path]
    weights = undisturbed.model.state_dict()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in resumed.model.state_dict().items())
    again = len(counted)
    prune(model, *tasks, max_drop=40, run=tmp_path / "other")
    assert len(counted) - again == again + kept
    with pytest.raises(RunConflict, match=r"max_drop .*40.*30"):
        prune(model, *tasks, max_drop=30, run=tmp_path / "run")
