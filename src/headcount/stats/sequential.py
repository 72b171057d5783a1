"""Deciding early: bounds of a change that stay valid however often one looks at the data, and whenever one stops.

A mean of 0/1 outcomes has a confidence sequence by betting (Waudby-Smith and Ramdas 2024, "Estimating means of bounded
random variables by betting"). Against the claim that the mean change is m, a capital of 1 is bet on every example, and
multiplied by 1 + lambda (d - m) for a change d of -1, 0 or 1. If the claim is true, the capital reaches 1 / tail with a
probability of at most `tail`, at any time (Ville's inequality); the claims that it has not reached it against are the
interval. The capital is spread over several lambda at the start (the method of mixtures in place of their plug-in), so
that it depends only on how many examples were lost and won, not on their order.

Every other metric has a group-sequential bootstrap: the looks are planned, and each has an equal part of the error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from headcount.stats.intervals import (
    HALVINGS,
    SEED,
    AnyMetric,
    are_outcomes,
    change_bounds,
    chunks,
    resampled_changes,
    room_for_unseen,
    score,
)

BETTING, GROUP_SEQUENTIAL = "betting confidence sequence", "group-sequential bootstrap"
FIRST = 64  # examples of the first look, at least
GROWTH, GROWTH_RESAMPLED = 1.25, 1.5  # of the examples from look to look: looking costs a bootstrap a part of its error
BETS = np.array([1.0, 0.9, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.09, 0.06])  # shares of the largest allowed lambda
STAKES = (1 / np.arange(1, 11)) / (1 / np.arange(1, 11)).sum()  # of the capital on each of them
IN_THE_TAIL = 4  # resamples beyond a bound: with fewer, chance would decide where it lies
GLANCE, GLANCED = 0.01, 1000  # tail and resamples of bounds that tell whether it is worth drawing more
MISSED, WITHIN, UNDECIDED = "missed", "within", "undecided"


class Deciding:
    """The changes of M masks, followed look by look until each is decided, all of them jointly right but for `alpha`.

    >>> from headcount.tasks.metrics import CLASSIFICATION
    >>> base = np.ones((400, 2))  # (N, S): all are right
    >>> masked = np.stack([base, base * [1, 0.5] // 1])  # the second mask: all are wrong
    >>> deciding = Deciding(CLASSIFICATION["accuracy"], masks=2, examples=400, margin=0.05)
    >>> for size in deciding.looks:
    ...     still = deciding.open
    ...     _ = deciding.look(base[:size], masked[still, :size])
    >>> deciding.decisions.tolist(), deciding.examples.tolist()
    (['within', 'missed'], [105, 68])

    margin: in the metric's unit; where its points are shares of the whole model's score, such a share.
    looks: after how many examples to look. examples: how many each mask had when it was decided, or has had so far.
    decisions: "missed": significantly worse; "within": shown to be worse by at most the margin; else "undecided".
    """

    def __init__(
        self, metric: AnyMetric, *, masks: int, examples: int, margin: float, alpha: float = 0.05, seed: int = SEED
    ) -> None:
        self.metric, self.margin, self.error, self.seed = metric, margin, alpha / max(1, masks), seed
        self.looks = planned_looks(examples, metric)
        self.bounds = Bounds.unknown(masks)
        self.decisions = np.full(masks, UNDECIDED, dtype=object)
        self.examples = np.zeros(masks, int)
        self.score, self.change = np.zeros(masks), np.zeros(masks)
        self.test = ""

    def signature(self) -> dict[str, Any]:
        """What the decisions depend on, beside the data."""
        return {"margin": self.margin, "error": self.error, "seed": self.seed, "looks": self.looks}

    @property
    def open(self) -> np.ndarray:
        """The places of masks that are not decided."""
        return np.flatnonzero(self.decisions == UNDECIDED)

    def look(self, base: np.ndarray, masked: np.ndarray) -> np.ndarray:
        """Decide what can be decided, from all examples so far; True for masks that stay open.

        base: (N, S). masked: (open, N, S) those of the open masks, in their order.
        """
        places, metric = self.open, self.metric
        whole = float(score(base, metric))
        self.score[places] = score(masked, metric)
        self.change[places] = self.score[places] - whole
        self.examples[places] = len(base)
        margin = self.margin * (abs(whole) if getattr(metric, "relative", False) and whole else 1.0)
        self.test = method_for(base, metric)
        worth = np.ones(len(places), bool)
        if self.test == GROUP_SEQUENTIAL and len(base) < self.looks[-1]:
            low, high = change_bounds(base, masked, metric, GLANCE, resamples=GLANCED, seed=self.seed)
            worth = self._decided(low, high, margin) != UNDECIDED
        if worth.any():
            looks = len(self.looks)
            found = sequential_bounds(base, masked[worth], metric, error=self.error, looks=looks, seed=self.seed)
            self.bounds.tighten(places[worth], found)
        self.decisions[places] = self._decided(self.bounds.low[places], self.bounds.high[places], margin)
        return self.decisions[places] == UNDECIDED

    def _decided(self, low: np.ndarray, high: np.ndarray, margin: float) -> np.ndarray:
        worst, best = (low, high) if getattr(self.metric, "higher_is_better", True) else (-high, -low)
        return np.where(best < 0, MISSED, np.where(worst >= -margin, WITHIN, UNDECIDED)).astype(object)


@dataclass(frozen=True)
class Bounds:
    """Bounds of each mask's change after a look, (M,) arrays, and the p of no change; all hold at any stopping time."""

    low: np.ndarray
    high: np.ndarray
    p: np.ndarray

    def tighten(self, places: np.ndarray, found: Bounds) -> None:
        """Take in a later look at some masks: all looks hold jointly, so each end can take the better of two."""
        self.low[places] = np.maximum(self.low[places], found.low)
        self.high[places] = np.minimum(self.high[places], found.high)
        self.p[places] = np.minimum(self.p[places], found.p)

    @classmethod
    def unknown(cls, masks: int) -> Bounds:
        """Before the first look."""
        return cls(np.full(masks, -np.inf), np.full(masks, np.inf), np.ones(masks))


def planned_looks(examples: int, metric: AnyMetric) -> list[int]:
    """After how many examples to look, in growing steps; the last look sees all.

    >>> planned_looks(1000, lambda sums: sums[..., 0]), planned_looks(50, lambda sums: sums[..., 0])
    ([88, 132, 198, 297, 445, 667, 1000], [50])
    """
    growth = GROWTH if getattr(metric, "proportion", False) else GROWTH_RESAMPLED
    sizes = [examples]
    while examples / growth ** len(sizes) >= FIRST:
        sizes.append(math.ceil(examples / growth ** len(sizes)))
    return sizes[::-1]


def method_for(statistics: np.ndarray, metric: AnyMetric) -> str:
    """How bounds of this metric are found: by betting for one 0/1 outcome per example, else by resampling."""
    return BETTING if are_outcomes(statistics, metric) else GROUP_SEQUENTIAL


def sequential_bounds(
    base: np.ndarray,
    masked: np.ndarray,
    metric: AnyMetric,
    *,
    error: float,
    looks: int,
    seed: int = SEED,
) -> Bounds:
    """The bounds of each mask's change at one of several looks: at all of them together, both hold but for `error`.

    >>> right = np.array([1.0] * 160 + [0.0] * 40)
    >>> base = np.stack([np.ones(200), right], axis=1)
    >>> from headcount.tasks.metrics import CLASSIFICATION
    >>> worse = base * [1, 0.5] // 1  # with the head off, everything is wrong
    >>> found = sequential_bounds(base, np.stack([base, worse]), CLASSIFICATION["accuracy"], error=0.05, looks=9)
    >>> found.low.round(2).tolist(), found.high.round(2).tolist()
    ([-0.02, -0.89], [0.02, -0.71])

    base: (N, S) of the examples seen so far. masked: (M, N, S). error: of each mask; for M of them jointly, a part.
    looks: how many are planned, which matters to the bootstrap alone.
    """
    base, masked = np.asarray(base, float), np.asarray(masked, float)
    if method_for(base, metric) == BETTING and are_outcomes(masked, metric):
        before, after = base[:, 1] > 0, masked[..., 1] > 0
        lost, won = (before & ~after).sum(-1), (~before & after).sum(-1)
        low, high = betting_bounds(lost, won, len(base), error / 2)
        fallen, risen = (
            log_capital(*counts, len(base), np.zeros(len(masked))) for counts in ((won, lost), (lost, won))
        )
        return Bounds(low, high, np.minimum(1.0, 2 * np.exp(-np.maximum(fallen, risen))))
    return _bootstrap_bounds(base, masked, metric, error / 2 / looks, looks, seed)


def betting_bounds(lost: np.ndarray, won: np.ndarray, n: int, tail: float) -> tuple[np.ndarray, np.ndarray]:
    """The lower and the upper bound of P(won) - P(lost), each missing, ever, with a probability of at most `tail`.

    >>> low, high = betting_bounds(np.array([0, 12]), np.array([0, 2]), n=100, tail=0.025)
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([-0.043, -0.24], [0.043, 0.015])

    lost, won: (M,) how many of the n examples turned from right to wrong, and from wrong to right.
    """
    lost, won = np.asarray(lost, float), np.asarray(won, float)
    return _lowest(lost, won, n, tail), -_lowest(won, lost, n, tail)


def log_capital(lost: np.ndarray, won: np.ndarray, n: int, mean: np.ndarray) -> np.ndarray:
    """The log of the capital after bets that the mean change is above `mean`, (M,).

    Waudby-Smith and Ramdas's K_t(m), the product of 1 + lambda (d_i - m), mixed over lambda = c / (1 + m) for each c of
    `BETS`. The factors of a lost, an unchanged and a won example are
    1 - c, 1 - c m / (1 + m) and 1 + c (1 - m) / (1 + m). They fall with m, hence so does the capital.
    """
    at = 1 + mean[:, None]  # (M, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ruined = np.where(lost[:, None] > 0, lost[:, None] * np.log1p(-BETS), 0.0)  # (M, bets); a bet of all is lost
    same = (n - lost - won)[:, None] * np.log1p(-BETS * mean[:, None] / at)
    gained = won[:, None] * np.log1p(BETS * (1 - mean[:, None]) / at)
    logs = ruined + same + gained + np.log(STAKES)
    most = logs.max(1)
    return most + np.log(np.exp(logs - most[:, None]).sum(1))


def _lowest(lost: np.ndarray, won: np.ndarray, n: int, tail: float) -> np.ndarray:
    """The smallest mean that the capital has not reached 1 / tail against, found by halving the range."""
    low, high = np.full(lost.shape, -1 + 1e-9), np.ones(lost.shape)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        refuted = log_capital(lost, won, n, middle) >= -math.log(tail)
        low, high = np.where(refuted, middle, low), np.where(refuted, high, middle)
    return low


def _bootstrap_bounds(
    base: np.ndarray, masked: np.ndarray, metric: AnyMetric, tail: float, looks: int, seed: int
) -> Bounds:
    """Bounds that each miss in `tail` of cases at this look, by as many resamples as that takes."""
    found = Bounds.unknown(len(masked))
    whole, scores = float(score(base, metric)), score(masked, metric)
    resamples = math.ceil(IN_THE_TAIL / tail)
    scale = abs(whole) if getattr(metric, "relative", False) and whole else 1.0
    room = room_for_unseen(len(base), metric, tail, np.maximum(abs(whole), np.abs(scores)))
    least, most = scores - whole - room, scores - whole + room  # bounds are not closer to the change than these
    for masks in chunks(np.arange(len(masked)), 8 * (8 * resamples + 4 * base.size)):
        lower, upper = (
            resampled_changes(base, masked[masks], metric, side, resamples, seed, scale != 1.0) * scale
            for side in (0, 1)
        )
        found.low[masks] = np.minimum(np.quantile(lower, tail, axis=0), least[masks])
        found.high[masks] = np.maximum(np.quantile(upper, 1 - tail, axis=0), most[masks])
        beyond = np.minimum((lower <= 0).sum(0), (upper >= 0).sum(0))
        inside = (least[masks] <= 0) & (most[masks] >= 0)
        found.p[masks] = np.where(inside, 1.0, np.minimum(1.0, 2 * looks * (beyond + 1) / (resamples + 1)))
    return found
