"""Ours against a baseline on the same test examples: intervals per data set, and Stouffer's test over all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy import stats as scipy_stats

from headcount.stats import paired_test
from headcount.tasks import Metric

RESAMPLES = 10_000


@dataclass(frozen=True)
class Difference:
    """Ours minus theirs, in points, with its 95% interval and p; positive is better for us. z: p as a signed normal."""

    change: float
    low: float
    high: float
    p: float

    @property
    def z(self) -> float:
        return math.copysign(float(scipy_stats.norm.isf(self.p / 2)), self.change)


@dataclass(frozen=True)
class Pooled:
    """Several independent paired tests as one."""

    z: float
    p: float
    tests: int


def difference(
    theirs: Sequence[np.ndarray], ours: Sequence[np.ndarray], metric: Metric, base: float, resamples: int = RESAMPLES
) -> Difference:
    """The mean difference over several speeds, resampling the examples once for all of them.

    >>> right = np.array([1.0] * 80 + [0.0] * 20)
    >>> ours, theirs = (np.stack([np.ones(100), each], axis=1) for each in (right, np.roll(right, 10) * right))
    >>> accuracy = Metric("accuracy", lambda sums: sums[..., 1] / sums[..., 0], points=0.01)
    >>> round(difference([theirs], [ours], accuracy, base=0.8, resamples=1000).change, 6)
    10.0

    theirs, ours: at each speed, the statistics of every example (N, S). base: the whole model's score, for metrics
    whose points are shares of it.
    """
    points = metric.points * (base if metric.relative else 1.0)
    sign = 1.0 if metric.higher_is_better else -1.0
    before, after = (np.concatenate(each, axis=1) for each in (theirs, ours))  # (N, speeds * S)
    of_sums = partial(_mean_score, metric=metric, speeds=len(ours), scale=sign / points)
    test = paired_test(before, after[None], of_sums, resamples=resamples)
    return Difference(*(float(value[0]) for value in (test.change, test.low, test.high, test.p)))


def _mean_score(sums: np.ndarray, metric: Metric, speeds: int, scale: float) -> np.ndarray:
    return scale * np.mean([metric.of_sums(part) for part in np.split(sums, speeds, axis=-1)], axis=0)


def pooled(differences: Sequence[Difference]) -> Pooled:
    """Stouffer's test: the sum of independent z, which has variance k. Points of different metrics are never added.

    >>> pooled([Difference(1.0, -0.2, 2.2, p=0.1), Difference(4.0, -0.5, 8.5, p=0.08)]).p.__round__(3)
    0.016
    """
    z = sum(one.z for one in differences) / math.sqrt(len(differences))
    return Pooled(z, 2 * float(scipy_stats.norm.sf(abs(z))), len(differences))
