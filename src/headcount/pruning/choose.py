"""How large the cut shall be: the largest whose drop stays within a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headcount.engine import sweep
from headcount.errors import HeadcountError
from headcount.heads import Head
from headcount.pruning.budget import Budget, believable, largest_within, surely_beyond
from headcount.pruning.calibration import Calibration
from headcount.pruning.compensate import compensate
from headcount.pruning.curve import Point, make_point
from headcount.pruning.journal import Journal
from headcount.pruning.schedule import counts
from headcount.pruning.search import Cut, cuts
from headcount.surgery import remove
from headcount.tasks import Task

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
        return self.journal.statistics(cut.removed, len(self.select), lambda: sweep(cut.model, self.select).of())

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
