"""Non-inferiority: evidence that a pruned model is at most a margin worse, not mere lack of evidence that it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats as scipy_stats

from headcount.stats.bootstrap import SEED, AnyMetric, resampled, score


@dataclass(frozen=True)
class NonInferiority:
    """Whether the data show that a change is at most `margin` for the worse.

    change: observed, in the metric's own sign. bound: its one-sided confidence bound on the worse side.
    shown: the bound is within the margin.
    examples_needed: about how many examples would show it if the change stays the same; None if no number would.
    """

    shown: bool
    change: float
    bound: float
    margin: float
    examples_needed: int | None


def noninferior(
    base: np.ndarray,
    masked: np.ndarray,
    metric: AnyMetric,
    margin: float,
    *,
    higher_is_better: bool = True,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = SEED,
) -> NonInferiority:
    """Test at this confidence level whether the masked (or pruned) model is at most `margin` worse than the base.

    >>> right = np.array([1.0] * 160 + [0.0] * 40)
    >>> base = np.stack([np.ones(200), right], axis=1)
    >>> masked = base.copy()
    >>> masked[:2, 1] = 0  # two more mistakes in 200
    >>> result = noninferior(base, masked, lambda s: s[..., 1] / s[..., 0], margin=0.03)
    >>> result.shown, round(result.change, 3)
    (True, -0.01)

    base, masked: (N, S). margin: positive, in the metric's unit.
    """
    base, masked = np.asarray(base, float), np.asarray(masked, float)
    if margin < 0:
        raise ValueError(f"expected a margin of 0 or more, not {margin}")
    sign = 1.0 if higher_is_better else -1.0
    scores = resampled(np.stack([base, masked]), metric, resamples, seed)  # (R, 2)
    changes = sign * (scores[:, 1] - scores[:, 0])  # (R,), negative is worse
    change = float(sign * (score(masked, metric) - score(base, metric)))
    bound = float(np.quantile(changes, 1 - level))
    return NonInferiority(
        shown=bound > -margin,
        change=sign * change,
        bound=sign * bound,
        margin=margin,
        examples_needed=_examples_needed(len(base), float(changes.std()), change + margin, level),
    )


def _examples_needed(n: int, spread: float, room: float, level: float, power: float = 0.8) -> int | None:
    """How many examples a one-sided test at this level needs for this power, by the normal approximation.

    The spread of the change shrinks with the root of n; `room` is the distance of the change from the margin.
    """
    if room <= 0:
        return None
    quantiles = scipy_stats.norm.ppf(level) + scipy_stats.norm.ppf(power)
    return max(1, math.ceil(n * (quantiles * spread / room) ** 2))
