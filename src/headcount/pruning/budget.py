"""How much worse is allowed, and how far a cut may go within it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headcount.errors import HeadcountError
from headcount.tasks import Metric


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
