"""Non-inferiority: evidence that a pruned model is at most a margin worse, not mere lack of evidence that it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats as scipy_stats

from headcount.stats.intervals import RESAMPLES, SEED, AnyMetric, are_outcomes, change_bounds, score

TIE = 1e-9  # as a share of the limit: closer than that, a value and its limit are the same number, rounded differently


@dataclass(frozen=True)
class NonInferiority:
    """Whether the data show that a change is at most `margin` for the worse.

    change: observed, in the metric's own sign. bound: its one-sided confidence bound on the worse side.
    shown: the bound is within the margin, or equal to it.
    examples_needed: about how many examples would show it if the change stays the same, to two digits; None if no
        number would, or the level is one half, at which the observed change decides.
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
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> NonInferiority:
    """Test at this confidence level whether the masked (or pruned) model is at most `margin` worse than the base.

    >>> right = np.array([1.0] * 160 + [0.0] * 40)
    >>> base = np.stack([np.ones(200), right], axis=1)
    >>> masked = base.copy()
    >>> masked[:2, 1] = 0  # two more mistakes in 200
    >>> result = noninferior(base, masked, lambda s: s[..., 1] / s[..., 0], margin=0.05)
    >>> result.shown, round(result.change, 3)
    (True, -0.01)

    base, masked: (N, S). margin: positive, in the metric's unit. level: 0.5 goes by the observed change.
    """
    base, masked = np.asarray(base, float), np.asarray(masked, float)
    if margin < 0:
        raise ValueError(f"expected a margin of 0 or more, not {margin}")
    sign = 1.0 if higher_is_better else -1.0
    bound = change = float(score(masked, metric) - score(base, metric))
    if level > 0.5:  # at one half, the observed change decides
        ends = change_bounds(base, masked[None], metric, 1 - level, resamples=resamples, seed=seed)
        bound = float(ends[0 if higher_is_better else 1][0])
    room = sign * change + margin
    if room <= 0 or level <= 0.5:
        needed = None
    elif are_outcomes(base, metric) and (masked[:, 1] == base[:, 1]).all():  # the rule of three
        needed = 1 if room >= 1 else about(math.log(1 - level) / math.log(1 - room))
    else:
        needed = _examples_needed(len(base), sign * (change - bound), room, level)
    return NonInferiority(at_most(-sign * bound, margin), change, bound, margin, needed)


def at_most(value: float, limit: float) -> bool:
    """Whether value <= limit, where a tie is within the limit however it was rounded.

    >>> 0.8 - 0.795 <= 0.005, at_most(0.8 - 0.795, 0.005), at_most(0.00501, 0.005)
    (False, True, False)
    """
    return bool(value <= limit + TIE * max(abs(limit), TIE))


def about(number: float) -> int:
    """A number of examples to the two digits that such a guess carries, rounded up.

    >>> about(33_574), about(7.2)
    (34000, 8)
    """
    step = 10 ** max(0, math.floor(math.log10(max(1.0, number))) - 1)
    return max(1, math.ceil(round(number / step, 6)) * step)


def _examples_needed(n: int, distance: float, room: float, level: float, power: float = 0.8) -> int:
    """How many examples a one-sided test at this level needs for this power, by the normal approximation.

    The distance of the bound from the change shrinks with the root of n; `room` is that of the change from the margin.
    """
    one, other = (float(scipy_stats.norm.ppf(share)) for share in (level, power))
    return about(n * ((one + other) / one * distance / room) ** 2)
