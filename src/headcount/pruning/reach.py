"""The cut to a size that is given: a number of heads, or the first that saves enough parameters or time."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from headcount.anatomy import anatomy
from headcount.errors import HeadcountError
from headcount.pruning.choose import Chosen, Job
from headcount.pruning.schedule import counts, of_kinds, removable
from headcount.pruning.search import SEARCHES, Cut
from headcount.pruning.speed import measure_speed
from headcount.pruning.target import Target
from headcount.surgery import remove

COARSE = 0.1  # step on the way


def cut_to_target(job: Job, target: Target, base: np.ndarray) -> Chosen:
    """The cut to a number of heads, or the first that saves enough parameters or time."""
    if target.heads is not None:
        number = target.head_count(job.total)
        way = [n for n in counts(job.total, COARSE)[1:] if n < number] if _again(job.method) else []
        made = deque(job.cuts([*way, number]), maxlen=1)
        if not made:
            raise HeadcountError(f"{number} heads are too few to take equally many from every layer")
        return made[0], (job.point(made[0], base),)
    _refuse_impossible(job, target)
    found: list[Cut] = []
    for cut in job.cuts(counts(job.total, job.step)[1:]):
        found.append(job.without(cut.removed))
        if _reached(job, target, cut.model):
            break
    else:
        raise HeadcountError("even the largest cut that was tried does not reach what was asked for")
    previous = found[-2].removed if len(found) > 1 else ()
    cut = found[-1]
    if not job.uniform and set(previous) <= set(cut.removed):
        order = [*previous, *(head for head in cut.removed if head not in set(previous))]
        low, high = len(previous), len(order)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if _reached(job, target, remove(job.model, order[:middle])) else (middle, high)
        cut = job.without(order[:high]) if high < len(order) else cut
    return cut, (job.point(cut, base),)


def _refuse_impossible(job: Job, target: Target) -> None:
    """Say at once what can be had if all that may go went."""
    found = anatomy(job.model)
    without = remove(job.model, removable(of_kinds(found, job.kinds), job.keep_at_least, found.heads))
    if target.params is not None and _saved(job.model, without) < target.params:
        raise HeadcountError(
            f"{target.params:.1%} of the parameters cannot be saved: all heads that may go hold "
            f"{_saved(job.model, without):.1%} of them"
        )
    if target.speedup is not None:
        most = measure_speed(job.model, without, job.select).speedup
        if most < target.speedup:
            raise HeadcountError(
                f"{target.speedup:g} times as fast cannot be had: without any head that may go the model is "
                f"{most:.2f} times as fast here"
            )


def _reached(job: Job, target: Target, smaller: Any) -> bool:
    if target.params is not None:
        return _saved(job.model, smaller) >= target.params
    assert target.speedup is not None
    return measure_speed(job.model, smaller, job.select).speedup >= target.speedup


def _saved(model: Any, smaller: Any) -> float:
    before, after = (sum(p.numel() for p in one.parameters()) for one in (model, smaller))
    return 1 - after / before


def _again(method: str) -> bool:
    return method in SEARCHES and SEARCHES[method].again
