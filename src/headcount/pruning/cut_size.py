"""How large the cut shall be: the largest whose drop stays within a budget."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headcount.bench import measure_speed
from headcount.errors import HeadcountError
from headcount.evaluation import evaluate
from headcount.heads import Head
from headcount.pruning.calibration import Calibration
from headcount.pruning.compensation import compensate
from headcount.pruning.curve import Point, counts, make_point, of_kinds, removable
from headcount.pruning.search import SEARCHES, Cut, Journal, cuts
from headcount.pruning.settings import Target
from headcount.structure import anatomy
from headcount.surgery import remove
from headcount.tasks import Metric, Task

COARSE = 0.1  # step on the way


Chosen = tuple[Cut, tuple[Point, ...]]


@dataclass(frozen=True)
class Job:
    """A model, the data that scores and the data that chooses, and how cuts are made."""

    model: Any
    score: Task
    select: Task
    method: str
    how: str
    kinds: Sequence[str] | None
    keep_at_least: int
    uniform: bool
    step: float
    caution: float
    total: int  # heads that may go
    calibration: Calibration | None
    journal: Journal
    progress: Callable[[float], None]

    def cuts(self, numbers: Sequence[int]) -> Iterator[Cut]:
        """Cuts of these sizes; with `uniform`, those that come closest."""
        before = 0
        for number, cut in zip(numbers, self._cuts(numbers), strict=True):
            if len(cut.removed) > before:
                yield cut
            before = len(cut.removed)
            self.progress(number / max(1, self.total))

    def _cuts(self, numbers: Sequence[int]) -> Iterator[Cut]:
        return cuts(
            self.model,
            self.score,
            numbers,
            method=self.method,
            how=self.how,
            kinds=self.kinds,
            keep_at_least=self.keep_at_least,
            uniform=self.uniform,
            calibration=self.calibration,
            journal=self.journal,
        )

    def without(self, removed: Sequence[Head]) -> Cut:
        """These heads gone, and compensated for."""

        def make() -> Any:
            return compensate(
                remove(self.model, removed), self.model, self.score, self.how, calibration=self.calibration
            )

        return Cut(tuple(removed), make)

    def statistics(self, cut: Cut) -> np.ndarray:
        """(N, S) of a cut on the data that chooses."""
        return self.journal.statistics(cut.removed, len(self.select), lambda: evaluate(cut.model, self.select).of())

    def point(self, cut: Cut, base: np.ndarray) -> Point:
        return make_point(self.select.metric, base, self.statistics(cut), cut.removed, self.total)


def cut_within(job: Job, budget: Budget, base: np.ndarray) -> Chosen:
    """The largest cut whose drop on the selection data stays within the budget.

    Walks on until two cuts in a row are surely beyond it, then looks between the last good cut and the next one.
    """
    found, points = list[Cut](), list[Point]()
    drops, errors = list[float](), list[float]()
    for cut in job.cuts(counts(job.total, job.step)[1:]):
        found.append(job.without(cut.removed))  # made again if it is chosen: not all of them fit into memory at once
        points.append(job.point(cut, base))
        drops.append(budget.drop(points[-1].score))
        errors.append(_error(points[-1]))
        if surely_beyond(drops, errors, budget.allowed, job.caution):
            break
    best = largest_within(drops, errors, budget.allowed, job.caution)
    if best is None:
        likely = believable(drops, errors)
        least = int(likely.argmin())
        raise HeadcountError(
            f"no cut stays within {budget.points:g} points: the smallest drop found is "
            f"{budget.in_points(float(likely[least])):.2f} points, with {len(points[least].removed)} heads gone; "
            "allow more, or recover with training (--recover-epochs)"
        )
    chosen = found[best]
    if best + 1 < len(found) and not job.uniform and set(chosen.removed) <= set(found[best + 1].removed):
        chosen, more = _between(job, budget, base, chosen, found[best + 1])
        points += more
    return chosen, tuple(sorted(points, key=lambda p: len(p.removed)))


def _between(job: Job, budget: Budget, base: np.ndarray, good: Cut, bad: Cut) -> tuple[Cut, list[Point]]:
    """Bisect, one head at a time, between a cut that is good and one that is not."""
    order = [*good.removed, *(head for head in bad.removed if head not in set(good.removed))]
    low, high, best, points = len(good.removed), len(bad.removed), good, list[Point]()
    while high - low > 1:
        middle = (low + high) // 2
        cut = job.without(order[:middle])
        points.append(job.point(cut, base))
        if budget.drop(points[-1].score) + job.caution * _error(points[-1]) <= budget.allowed:
            low, best = middle, cut
        else:
            high = middle
    return best, points


def _error(point: Point) -> float:
    """Standard error of the change, from its 95% interval."""
    return (point.change_high - point.change_low) / 3.92


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


@dataclass(frozen=True)
class Budget:
    """A drop in points, in the metric's own unit and direction.

    points: hundredths of accuracy, F1 and Matthews, points of BLEU and chrF, percent of perplexity and loss.
    allowed: the same as an amount of this metric, positive. point: one point as such an amount.
    base: the unpruned model's score.
    """

    points: float
    allowed: float
    point: float
    base: float
    higher_is_better: bool

    @classmethod
    def of(cls, metric: Metric, points: float, base: float) -> Budget:
        """The budget of so many points under a metric.

        >>> from headcount.tasks.metrics import CLASSIFICATION, LANGUAGE
        >>> Budget.of(CLASSIFICATION["accuracy"], 0.5, base=0.88).allowed
        0.005
        >>> Budget.of(LANGUAGE["perplexity"], 2, base=50.0).allowed  # two percent, upwards
        1.0
        """
        if not points >= 0:
            raise HeadcountError(f"the largest drop is in points and not negative; got {points:g}")
        point = metric.points * (abs(base) if metric.relative and base else 1.0)
        return cls(points, points * point, point, base, metric.higher_is_better)

    def drop(self, score: float) -> float:
        """How much worse than the base a score is, positive for worse."""
        return self.base - score if self.higher_is_better else score - self.base

    def in_points(self, drop: float) -> float:
        """An amount of the metric as points."""
        return drop / self.point


def largest_within(drops: Sequence[float], errors: Sequence[float], allowed: float, caution: float = 0.0) -> int | None:
    """The position of the largest cut that stays within the budget; None if none does.

    >>> largest_within([0.001, 0.004, 0.002, 0.02], [0.01] * 4, allowed=0.005)
    2
    >>> largest_within([0.02, 0.03], [0.01] * 2, allowed=0.005) is None
    True

    Taken one by one, the luckiest of many measurements would be chosen, and its luck does not last. More heads gone
    cannot really be better, so drops are first made to rise (isotonic regression, weighted by their certainty), which
    lends each the evidence of its neighbours; and the drop as measured must be within the budget, too.

    drops, errors: measured drops of growing cuts and their standard errors. caution: standard errors to stay away.
    """
    good = believable(drops, errors) + caution * np.asarray(errors, float) <= allowed + 1e-12
    return int(np.flatnonzero(good)[-1]) if good.any() else None


def surely_beyond(drops: Sequence[float], errors: Sequence[float], allowed: float, caution: float = 0.0) -> bool:
    """Whether the last two cuts both are two standard errors beyond what may be chosen: no larger one will be.

    >>> surely_beyond([0.0, 0.03, 0.03], [0.01] * 3, allowed=0.015), surely_beyond([0.03], [0.01], allowed=0.0)
    (False, False)
    >>> surely_beyond([0.0, 0.03, 0.03], [0.01] * 3, allowed=0.015, caution=1)
    True
    """
    last = list(zip(drops, errors, strict=True))[-2:]
    return len(last) == 2 and all(drop - 2 * error > allowed - caution * error for drop, error in last)


def believable(drops: Sequence[float], errors: Sequence[float]) -> np.ndarray:
    """Drops that are not smaller than what the cuts around them say.

    >>> believable([0.0, 0.3, 0.1, 0.4], [0.1] * 4).round(2).tolist()
    [0.0, 0.3, 0.2, 0.4]
    """
    from sklearn.isotonic import IsotonicRegression  # slow to import

    measured, spread = np.asarray(drops, float), np.maximum(np.asarray(errors, float), 1e-9)
    rising = IsotonicRegression().fit_transform(np.arange(len(measured)), measured, sample_weight=spread**-2.0)
    return np.maximum(rising, measured)
