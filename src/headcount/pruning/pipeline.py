"""`prune`: the whole job, from a model to a smaller one that was tested against it on held-out data.

`forecast` says what the job would do, how long each step would take here, and what its data cannot show.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headcount.bench import Speed, measure_speed, seconds_per_token
from headcount.errors import HeadcountError, counted, duration
from headcount.evaluation import evaluate, make_plan, measure
from headcount.pruning.calibration import CALIBRATION_TOKENS, Calibration
from headcount.pruning.cut_size import TOO_FEW, Budget, Saving, choose_cut, cut_sizes, in_unit
from headcount.pruning.pruned import Pruned
from headcount.pruning.search import THOUSANDTHS, CutSearch
from headcount.pruning.search_methods import removable
from headcount.pruning.splits import Splits, refuse_headless, split_data
from headcount.pruning.unit_costs import flops_by_unit, flops_of, saved_by_unit
from headcount.runs import RunDirectory, model_signature, open_run, versions
from headcount.scoring import unit_moments
from headcount.settings import Pruning
from headcount.stats import about, change_bounds, unseen_share
from headcount.structure import anatomy, cache_bytes, device_of
from headcount.surgery import rounded
from headcount.tasks import Metric, Task, refuse_non_tasks
from headcount.training import recover

log = logging.getLogger("headcount")

VERDICT_POINTS = 1.0  # the margin of the verdict where no drop was given
VERDICT_CONFIDENCE = 0.95
FEW = 64  # examples to judge the limits of the data by


def prune(
    model: Any,
    score_task: Task,
    select_task: Task,
    test_task: Task | None = None,
    max_drop: float | None = None,
    *,
    settings: Pruning | None = None,
    run: str | Path | RunDirectory | None = None,
    progress: Callable[[str, float], None] | None = None,
    precision: torch.dtype | None = None,
    **knobs: Any,
) -> Pruned:
    """Remove as much as a budget allows, compensate for it, and test the result on held-out data.

    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> from headcount.tasks import Classification
    >>> from headcount.tasks.text import word_tokenizer
    >>> config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=20, pad_token_id=0)
    >>> train = [{"text": "fine", "label": 1}, {"text": "dull", "label": 0}]
    >>> dev = [{"text": f"{word} film", "label": int("fine" in word)} for word in ("fine", "a fine", "dull", "a dull")]
    >>> train, dev = (Classification(rows, word_tokenizer("a fine dull film")) for rows in (train, dev))
    >>> pruned = prune(BertForSequenceClassification(config).eval(), train, dev, heads="50%")
    >>> len(pruned.removed), pruned.left, pruned.remarks[0]
    (4, 4, 'No test data: 2 examples for selection, 2 for testing.')

    score_task: data to score heads and compensate on, such as training data. select_task: data to choose the size of
        the cut on. test_task: held-out data for the verdict; without it, half of `select_task` is held out.
    max_drop: the largest drop, in points. knobs: any other field of `Pruning`, by name.
    settings: instead of the knobs, or to be changed by them.
    run: a run directory; the same call resumes there where it was interrupted, to the same result.
    progress: called with what is being done and the share done.
    precision: that the smaller model will be saved in, if it is lower: its weights are rounded to it before the test.
    """
    settings = Pruning.of(settings, **({} if max_drop is None else {"max_drop": max_drop}), **knobs)
    refuse_non_tasks(score_task=score_task, select_task=select_task, test_task=test_task or select_task)
    refuse_headless(model, settings.units or "heads")
    data = split_data(score_task, select_task, test_task, settings)
    tell = progress or (lambda what, share: None)
    signature = {
        "model": model_signature(model),
        "score": data.score.signature(),
        "select": data.select.signature(),
        "test": data.test.signature(),
        **settings.signature(),
        "versions": versions(),
    }
    limits = limits_of(model, data, settings)
    if "selection" in limits:
        raise HeadcountError(limits["selection"].rstrip("."), advice=TOO_FEW)
    for limit in limits.values():
        log.warning(limit)
    with open_run(run, signature) as directory:
        tell("calibrating", 0.0)
        calibration = None
        if settings.compensation != "none":  # all of the score data is at hand for it, not just what scores units
            calibration = Calibration(model, score_task, seed=settings.seed)
        search = CutSearch(
            model,
            data.score,
            settings,
            calibration=calibration,
            run=directory,
            progress=lambda share: tell("searching", share),
        )
        cut, tried = choose_cut(search, data.select)
        smaller: Any = cut.model
        scores: list[float] = []
        if settings.recovery is not None:
            scores = recover(
                smaller,
                score_task,
                data.select,
                settings.recovery,
                whole=model,
                directory=None if directory is None else directory.path / "recovery",
                progress=lambda share: tell("recovering", share),
            )
    if precision is not None:
        rounded(smaller, precision)
    tell("testing", 0.0)
    speed = measure_speed(model, smaller, data.test)
    return Pruned(
        model=smaller,
        removed=tuple(sorted(cut.removed)),
        metric=data.test.metric,
        parameters_before=_parameters(model),
        parameters_after=_parameters(smaller),
        flops_before=flops_of(model, data.select),
        flops_after=flops_of(smaller, data.select),
        saved=saved_by_unit(model, smaller, data.select),
        speed=speed,
        cache_before=cache_bytes(model),
        cache_after=cache_bytes(smaller),
        settings=settings,
        path=tried,
        recovery=tuple(scores),
        remarks=(
            *data.remarks,
            *limits.values(),
            *_slower_than_asked(speed, settings),
            *_what_others_would_add(model, data.test, settings),
        ),
        signature=signature,
        **_test(model, smaller, data.test, settings),
    )


def unshowable(budget: Budget, metric: Metric, base: np.ndarray, confidence: float, what: str) -> str:
    """Why a drop within the budget cannot be shown on this data, even if the cut changes nothing; empty if it can.

    base: (N, S) the statistics of the whole model.
    """
    n, best = len(base), budget.test(metric, base, base, confidence)
    if best.shown:
        return ""
    loss = "drop" if metric.higher_is_better else "rise"
    asked, shown = f"{budget.points:g}", f"{float(f'{budget.in_points(abs(best.bound)):.2g}'):g}"
    more = ""
    if budget.allowed:
        unseen = unseen_share(n, 1 - confidence) * budget.allowed / abs(best.bound)  # lost, they use up the budget
        more = f"; at least about {about(math.log(1 - confidence) / math.log(1 - unseen)):,} are needed"
    return (
        f"{n:,} {what} example{'s' * (n != 1)} cannot show a {loss} of at most {in_unit(asked, metric)}: "
        f"{in_unit(shown, metric)} is the best they can show, if nothing changes{more}"
    )


def limits_of(model: Any, data: Splits, settings: Pruning) -> dict[str, str]:
    """Where the data is too small to show that a drop is within the budget: for "selection", "test", both or neither.

    Judged by the whole model's statistics of a few examples, as often as there are more.
    """
    asked = [("test", data.test, VERDICT_CONFIDENCE)]
    if not settings.is_sized:
        asked.insert(0, ("selection", data.select, settings.confidence))
    found = {}
    for what, task, confidence in asked:
        few = evaluate(model, task.subset(range(min(FEW, len(task))))).of()
        statistics = np.resize(few, (len(task), few.shape[1]))
        budget = _verdict_budget(task.metric, statistics, settings)
        if limit := unshowable(budget, task.metric, statistics, confidence, what):
            found[what] = f"{limit}."
    return found


def _verdict_budget(metric: Metric, before: np.ndarray, settings: Pruning) -> Budget:
    """The margin of the verdict; before: (N, S) the statistics of the whole model."""
    points = VERDICT_POINTS if settings.max_drop is None else settings.max_drop
    return Budget.of(metric, points, float(metric.of(before)))


def _test(whole: Any, smaller: Any, task: Task, settings: Pruning) -> dict[str, Any]:
    """Before and after on the test data, and the verdict."""
    metric = task.metric
    base, after = evaluate(whole, task).of(), evaluate(smaller, task).of()
    budget = _verdict_budget(metric, base, settings)
    low, high = change_bounds(base, after[None], metric)
    verdict = budget.test(metric, base, after, VERDICT_CONFIDENCE)
    return {
        "before": budget.base,
        "after": float(metric.of(after)),
        "change": verdict.change,
        "low": float(low[0]),
        "high": float(high[0]),
        "max_drop": budget.points,
        "verdict": verdict,
        "test_n": len(task),
    }


def _slower_than_asked(speed: Speed, settings: Pruning) -> list[str]:
    """A remark where the speed that was asked for was measured during the search, and is not at its end."""
    if settings.speedup is None or speed.high >= settings.speedup:
        return []
    return [
        f"{settings.speedup:g} times as fast was measured during the search, and not at its end; measure again on a "
        "quiet machine (headcount bench), or ask for more."
    ]


def _what_others_would_add(model: Any, task: Task, settings: Pruning) -> list[str]:
    """A remark where only heads are cut: how little of the model's arithmetic they are."""
    each = flops_by_unit(model, task)
    if settings.units != ("heads",) or not each["neurons"]:
        return []
    share = each["heads"] / sum(each.values())
    return [
        f"Only heads were removed, which do {share:.0%} of the layers' arithmetic; "
        f"neurons do the other {1 - share:.0%}, and can be removed, too, with units heads,neurons."
    ]


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def forecast(
    model: Any, score_task: Task, select_task: Task, test_task: Task | None, settings: Pruning
) -> dict[str, Any]:
    """The steps of `prune` and their seconds: `steps` [{what, seconds}], `seconds`, `limits` and a `text`.

    limits: where the data is too small to show that a drop is within the budget. Nothing is changed.
    """
    units = settings.units or ("heads",)
    refuse_headless(model, units)
    data = split_data(score_task, select_task, test_task, settings)
    if settings.params is not None or settings.flops is not None:
        plain = replace(settings, compensation="none", method="search")
        Saving(CutSearch(model, data.score, plain), data.select).refuse_impossible()
    found = anatomy(model, units)
    total = len(removable(found.heads_of(settings.kinds), settings.keep_at_least))
    if units == ("sublayers",):
        total = sum(bool(site.kept) for site in found.sites_of(settings.kinds))
    tried = len(cut_sizes(settings, THOUSANDTHS if settings.by_cost else total))
    what = units[0].removesuffix("s") if len(units) == 1 else "unit"
    forward, backward, evaluation = _costs(model, data.score, data.select, units)
    score, select, test = (sum(task.lengths) for task in (data.score, data.select, data.test))  # tokens
    calibration = min(CALIBRATION_TOKENS, score) if settings.compensation != "none" else 0
    scored_again = tried - 1 if settings.reestimates else 0  # times
    evaluated = tried if settings.heads is None else 1
    steps = [
        (f"score {counted(len(found.units), what)} on {counted(len(data.score), 'example')}", backward * score),
        (
            f"try up to {counted(tried, 'cut')} ({settings.method}, compensation {settings.compensation})",
            scored_again * backward * score + tried * 2 * forward * calibration,
        ),
        (f"evaluate them on {counted(len(data.select), 'example')}", evaluated * evaluation * select),
    ]
    if settings.recovery is not None:
        epochs, tokens = settings.recovery.epochs, sum(score_task.lengths)
        words = f"recover for {counted(epochs, 'epoch')} on {counted(len(score_task), 'example')}"
        steps.append((words, 1.5 * backward * epochs * tokens))
    steps.append((f"test on {counted(len(data.test), 'held-out example')}", 2 * evaluation * test))
    seconds = sum(time for _, time in steps)
    lines = [f"To {settings.goal}, with {counted(total, f'removable {what}')}, prune would:"]
    lines += [f"  {what}: about {duration(time)}" for what, time in steps]
    limits = list(limits_of(model, data, settings).values())
    lines += [*data.remarks, *limits, f"In all at most about {duration(seconds)} here."]
    return {
        "steps": [{"what": what, "seconds": time} for what, time in steps],
        "seconds": seconds,
        "limits": limits,
        "text": "\n".join(lines),
    }


def _costs(model: Any, score: Task, select: Task, units: Any) -> tuple[float, float, float]:
    """Seconds per token: of a forward pass, of one with the gradients of all units, and of an evaluation."""
    device = device_of(model)

    def forward(batch: Any) -> None:
        with torch.inference_mode():
            score.outputs(model.eval(), batch)

    def decode(batch: Any) -> None:
        deque(measure(model.eval(), select, plan, [batch.indices], len(batch)), maxlen=0)

    plan = make_plan(model, select, [frozenset()])
    plain = seconds_per_token(score, forward, device)
    scoring = seconds_per_token(score, lambda batch: unit_moments(model, score.subset(batch.indices), units), device)
    return plain, scoring, seconds_per_token(select, decode, device) if select.generates else plain
