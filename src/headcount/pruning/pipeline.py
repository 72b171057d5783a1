"""`prune`: the whole job, from a model to a smaller one that has been shown to be as good."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headcount.bench import measure_speed
from headcount.errors import HeadcountError
from headcount.evaluation import evaluate
from headcount.pruning.calibration import Calibration
from headcount.pruning.curve import of_kinds, removable
from headcount.pruning.cut_size import Budget, Job, cut_to_target, cut_within
from headcount.pruning.pruned import Pruned
from headcount.pruning.search import DEFAULT, Cut, Journal
from headcount.pruning.settings import Target
from headcount.pruning.splits import SCORE_EXAMPLES, keep_apart, refuse_headless
from headcount.runs import RunDirectory, model_signature, open_run, versions
from headcount.stats import noninferior, paired_bootstrap
from headcount.structure import anatomy
from headcount.tasks import Task
from headcount.training import Recovery, recover

Progress = Callable[[str, float], None]
VERDICT_POINTS = 1.0  # what the verdict asks for where no drop was given


def prune(
    model: Any,
    score_task: Task,
    select_task: Task,
    test_task: Task | None = None,
    max_drop: float | None = None,
    *,
    heads: float | int | None = None,
    params: float | None = None,
    speedup: float | None = None,
    method: str = DEFAULT,
    compensation: str = "refit",
    uniform: bool = False,
    kinds: Sequence[str] | None = None,
    keep_at_least: int = 0,
    step: float = 0.05,
    caution: float = 0.0,
    recovery: Recovery | None = None,
    score_examples: int = SCORE_EXAMPLES,
    seed: int = 0,
    allow_overlap: bool = False,
    run: str | Path | RunDirectory | None = None,
    progress: Progress | None = None,
) -> Pruned:
    """Remove as many heads as a budget allows, make up for them, and prove it on data that no choice was made on.

    score_task: what heads are scored and compensated on, such as training data. select_task: what the size of the cut
    is chosen on. test_task: what proves it; without one, half of `select_task` does.
    max_drop: in points: hundredths of accuracy, F1 and Matthews, points of BLEU and chrF, percent of perplexity and
    loss. heads, params, speedup: instead (or besides, for the verdict alone), how far to cut.
    method: one of `headcount.pruning.SEARCHES`. compensation: refit, mean or none.
    caution: standard errors of the drop to stay away from the budget when the size of the cut is chosen.
    uniform: the same number of heads in every layer. recovery: fine-tune afterwards.
    run: a run directory; the same call goes on there where it was interrupted, to the same result.
    progress: called with what is being done and the share done.
    """
    target = Target(heads, params, speedup)
    if max_drop is None and not target.given:
        raise HeadcountError("say how far to cut: a largest drop in points, or heads, params or speedup")
    refuse_headless(model)
    data = keep_apart(score_task, select_task, test_task, score_examples, seed, allow_overlap)
    tell = progress or (lambda what, share: None)
    signature = {
        "model": model_signature(model),
        "score": data.score.signature(),
        "select": data.select.signature(),
        "test": data.test.signature(),
        "target": vars(target),
        "max_drop": max_drop,
        "method": method,
        "compensation": compensation,
        "uniform": uniform,
        "kinds": kinds,
        "keep_at_least": keep_at_least,
        "step": step,
        "caution": caution,
        "recovery": None if recovery is None else vars(recovery),
        "seed": seed,
        "versions": versions(),
    }
    with open_run(run, signature) as directory:
        tell("calibrating", 0.0)
        job = Job(
            model=model,
            score=data.score,
            select=data.select,
            method=method,
            how=compensation,
            kinds=kinds,
            keep_at_least=keep_at_least,
            uniform=uniform,
            step=step,
            caution=caution,
            total=len(removable(of_kinds(anatomy(model), kinds), keep_at_least)),
            calibration=None if compensation == "none" else Calibration(model, data.score, seed=seed),
            journal=Journal(directory),
            progress=lambda share: tell("searching", share),
        )
        base = job.statistics(Cut((), lambda: model))
        if target.given:
            cut, path = cut_to_target(job, target, base)
        else:
            assert max_drop is not None
            whole = float(data.select.metric.of_sums(base.sum(0)))
            cut, path = cut_within(job, Budget.of(data.select.metric, max_drop, whole), base)
        smaller: Any = cut.model
        scores: list[float] = []
        if recovery is not None:
            scores = recover(
                smaller,
                score_task,
                data.select,
                recovery,
                whole=model,
                directory=None if directory is None else directory.path / "recovery",
                progress=lambda share: tell("recovering", share),
            )
    tell("proving", 0.0)
    return Pruned(
        model=smaller,
        removed=tuple(sorted(cut.removed)),
        metric=data.test.metric,
        parameters_before=_parameters(model),
        parameters_after=_parameters(smaller),
        speed=measure_speed(model, smaller, data.test),
        method=method,
        compensation=compensation,
        path=path,
        recovery=tuple(scores),
        remarks=data.remarks,
        signature=signature,
        **_proof(model, smaller, data.test, max_drop),
    )


def _proof(whole: Any, smaller: Any, test: Task, max_drop: float | None) -> dict[str, Any]:
    """Before and after on the test data, and the verdict."""
    metric = test.metric
    base, after = evaluate(whole, test).of(), evaluate(smaller, test).of()
    score = float(metric.of_sums(base.sum(0)))
    budget = Budget.of(metric, VERDICT_POINTS if max_drop is None else max_drop, score)
    tested = paired_bootstrap(base, after[None], metric.of_sums, resamples=2000)
    verdict = noninferior(base, after, metric.of_sums, budget.allowed, higher_is_better=metric.higher_is_better)
    return {
        "before": score,
        "after": float(metric.of_sums(after.sum(0))),
        "change": float(tested.change[0]),
        "low": float(tested.low[0]),
        "high": float(tested.high[0]),
        "max_drop": budget.points,
        "verdict": verdict,
        "test_n": len(test),
    }


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
