"""Deciding early: bounds of a change that stay valid however often one looks at the data, and whenever one stops.

A mean of 0/1 outcomes has a confidence sequence by betting (Waudby-Smith and Ramdas 2024, "Estimating means of bounded
random variables by betting"). Against the claim that the mean change is m, a capital of 1 is bet on every example, and
multiplied by 1 + lambda (d - m) for a change d of -1, 0 or 1. If the claim is true, the capital reaches 1 / tail with a
probability of at most `tail`, at any time (Ville's inequality); the claims that it has not reached it against are the
interval. The capital is spread over several lambda at the start (the method of mixtures in place of their plug-in), so
that it depends only on how many examples were lost and won, not on their order.

Every other metric has a group-sequential bootstrap: the looks are planned, and the error is spent over them.

Half of the error is kept for the last look, which sees all of the data: there, the bounds and tests of a fixed number
of examples join in, so that little is lost where nothing could be decided early.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats as scipy_stats

from headcount.stats.intervals import (
    HALVINGS,
    SEED,
    AnyMetric,
    are_outcomes,
    bootstrap_p,
    change_bounds,
    chunks,
    in_blocks,
    paired_bounds,
    resampled_changes,
    room_for_unseen,
    score,
)
from headcount.stats.paired_tests import mcnemar_exact

BETTING, GROUP_SEQUENTIAL = "betting confidence sequence", "group-sequential bootstrap"
FIRST = 64  # examples of the first look, at least
GROWTH, GROWTH_RESAMPLED = 1.25, 1.6  # of the examples from look to look: looking costs a bootstrap a part of its error
BETS = np.array([1.0, 0.9, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.09, 0.06])  # shares of the largest allowed lambda
STAKES = (1 / np.arange(1, 11)) / (1 / np.arange(1, 11)).sum()  # of the capital on each of them
IN_THE_TAIL = 3  # resamples beyond a bound: with fewer, chance would decide where it lies
BLOCKS = 200  # of examples, resampled whole: bounds so far out take 100,000 resamples
FEW, SMALL = 1000, 0.02  # resamples that tell which p are worth many, and those p
GLANCE = 0.005  # tail of bounds that tell whether it is worth drawing more
SIGMA_TAIL = 0.025  # of the bound that tells the standard deviation of a change
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
    (['within', 'missed'], [132, 68])

    margin: in the metric's unit; where its points are shares of the whole model's score, such a share.
    looks: after how many examples to look. examples: how many each mask had when it was decided, or has had so far.
    decisions: "missed": significantly worse; "within": shown to be worse by at most the margin; else "undecided".
    """

    def __init__(
        self, metric: AnyMetric, *, masks: int, examples: int, margin: float, alpha: float = 0.05, seed: int = SEED
    ) -> None:
        self.metric, self.margin, self.error, self.seed = metric, margin, alpha / max(1, masks), seed
        self.looks = planned_looks(examples, GROWTH if getattr(metric, "proportion", False) else GROWTH_RESAMPLED)
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
        last, worth = len(base) >= self.looks[-1], np.ones(len(places), bool)
        if self.test == GROUP_SEQUENTIAL and not last:
            glance = _bootstrap_bounds(base, masked, metric, GLANCE, self.seed)
            worth = self._decided(glance, self.change[places], margin, GLANCE) != UNDECIDED
        if worth.any():
            share = share_of_error(len(self.looks), last, self.test)
            found = sequential_bounds(
                base, masked[worth], metric, error=self.error, share=share, last=last, seed=self.seed
            )
            self.bounds.tighten(places[worth], found)
        self.decisions[places] = self._decided(self.bounds.at(places), self.change[places], margin, self.error)
        return self.decisions[places] == UNDECIDED

    def _decided(self, bounds: Bounds, change: np.ndarray, margin: float, error: float) -> np.ndarray:
        better = getattr(self.metric, "higher_is_better", True)
        missed = (bounds.p < error) & (change < 0 if better else change > 0)
        within = (bounds.low if better else -bounds.high) >= -margin
        return np.where(missed, MISSED, np.where(within, WITHIN, UNDECIDED)).astype(object)


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

    def at(self, places: np.ndarray) -> Bounds:
        """Those of some masks."""
        return Bounds(self.low[places], self.high[places], self.p[places])

    @classmethod
    def unknown(cls, masks: int) -> Bounds:
        """Before the first look."""
        return cls(np.full(masks, -np.inf), np.full(masks, np.inf), np.ones(masks))


def planned_looks(examples: int, growth: float = GROWTH_RESAMPLED) -> list[int]:
    """After how many examples to look, in growing steps; the last look sees all.

    >>> planned_looks(1000), planned_looks(50)
    ([96, 153, 245, 391, 625, 1000], [50])
    """
    sizes = [examples]
    while examples / growth ** len(sizes) >= FIRST:
        sizes.append(math.ceil(examples / growth ** len(sizes)))
    return sizes[::-1]


def share_of_error(looks: int, last: bool, method: str) -> float:
    """The part of the error that is spent at one of several looks: half at the last; betting spends its half once.

    >>> [share_of_error(5, last, GROUP_SEQUENTIAL) for last in (False, True)], share_of_error(1, True, BETTING)
    ([0.125, 0.5], 1.0)
    """
    if looks == 1:
        return 1.0
    return 0.5 if last or method == BETTING else 0.5 / (looks - 1)


def method_for(statistics: np.ndarray, metric: AnyMetric) -> str:
    """How bounds of this metric are found: by betting for one 0/1 outcome per example, else by resampling."""
    return BETTING if are_outcomes(statistics, metric) else GROUP_SEQUENTIAL


def sequential_bounds(
    base: np.ndarray,
    masked: np.ndarray,
    metric: AnyMetric,
    *,
    error: float,
    share: float = 0.5,
    last: bool = False,
    seed: int = SEED,
) -> Bounds:
    """The bounds of each mask's change at one of several looks: at all of them together, both hold but for `error`.

    >>> right = np.array([1.0] * 160 + [0.0] * 40)
    >>> base = np.stack([np.ones(200), right], axis=1)
    >>> from headcount.tasks.metrics import CLASSIFICATION
    >>> worse = base * [1, 0.5] // 1  # with the head off, everything is wrong
    >>> found = sequential_bounds(base, np.stack([base, worse]), CLASSIFICATION["accuracy"], error=0.05)
    >>> found.low.round(2).tolist(), found.high.round(2).tolist()
    ([-0.03, -0.89], [0.03, -0.7])

    base: (N, S) of the examples seen so far. masked: (M, N, S). error: of each mask; for M of them jointly, a part.
    share: of the error that is spent at this look (`share_of_error`). last: all examples were seen.
    """
    base, masked = np.asarray(base, float), np.asarray(masked, float)
    if not (are_outcomes(base, metric) and are_outcomes(masked, metric)):
        found = _bootstrap_bounds(base, masked, metric, error * share / 2, seed)
        return Bounds(found.low, found.high, np.minimum(1.0, found.p / share))
    n, before, after = len(base), base[:, 1] > 0, masked[..., 1] > 0
    lost, won = (before & ~after).sum(-1), (~before & after).sum(-1)
    found = Bounds.unknown(len(masked))
    if share < 1:
        capital = np.maximum(*(log_capital(*pair, n, np.zeros(len(masked))) for pair in ((won, lost), (lost, won))))
        betting = Bounds(*betting_bounds(lost, won, n, error * share / 2), 2 / share * np.exp(-capital))
        found.tighten(np.arange(len(masked)), betting)
    if last:
        fixed = Bounds(*paired_bounds(lost, won, n, error * share / 2), mcnemar_exact(before, after) / share)
        found.tighten(np.arange(len(masked)), fixed)
    return found


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


def _bootstrap_bounds(base: np.ndarray, masked: np.ndarray, metric: AnyMetric, tail: float, seed: int) -> Bounds:
    """Bounds that each miss in `tail` of cases, and the p of no change, by as many resamples as that takes."""
    found = Bounds.unknown(len(masked))
    whole, scores = float(score(base, metric)), score(masked, metric)
    resamples = math.ceil(IN_THE_TAIL / tail)
    scale = abs(whole) if getattr(metric, "relative", False) and whole else 1.0
    room = room_for_unseen(len(base), metric, tail, np.maximum(abs(whole), np.abs(scores)))
    for masks in chunks(np.arange(len(masked)), 8 * (8 * resamples + 4 * base.size)):
        lower, upper = (
            np.quantile(
                resampled_changes(base, masked[masks], metric, side, resamples, seed, scale != 1.0, BLOCKS), at, axis=0
            )
            for side, at in ((0, tail), (1, 1 - tail))
        )
        found.low[masks], found.high[masks] = lower * scale, upper * scale
    found.low[:] = np.minimum(found.low, scores - whole - room)
    found.high[:] = np.maximum(found.high, scores - whole + room)
    before, after = in_blocks(base, BLOCKS), in_blocks(masked, BLOCKS)
    found.p[:] = bootstrap_p(before, after, metric, min(resamples, FEW), seed)[0]
    small = found.p < SMALL
    if resamples > FEW and small.any():
        found.p[small] = bootstrap_p(before, after[small], metric, resamples, seed)[0]
    return found


def foreseen(
    base: np.ndarray,
    masked: np.ndarray,
    metric: AnyMetric,
    margin: float,
    *,
    examples: int,
    higher_is_better: bool = True,
    level: float = 0.95,
    error: float = 0.001,
    seed: int = SEED,
) -> bool | None:
    """What `noninferior` will say on all of a data set, if the part that was seen leaves no doubt; else None.

    >>> from headcount.tasks.metrics import CLASSIFICATION
    >>> base = np.ones((200, 2))
    >>> worse = base.copy()
    >>> worse[::4, 1] = 0  # a quarter is wrong
    >>> accuracy = CLASSIFICATION["accuracy"]
    >>> [foreseen(base, worse, accuracy, margin, examples=1000) for margin in (0.1, 0.24, 0.4)]
    [False, None, True]

    The change on all n examples differs from that on t random ones of them by a standard deviation of
    s_t sqrt(1 - t / n), where s_t is that of the change on t; the bound is then about sqrt(t / n) times as far away.

    base, masked: (t, S) of examples in random order. margin, level: of the test. error: how often it may differ.
    """
    seen = np.asarray(base, float), np.asarray(masked, float)
    share, sign = len(base) / examples, 1.0 if higher_is_better else -1.0
    side = 0 if higher_is_better else 1
    change = sign * float(score(seen[1], metric) - score(seen[0], metric))
    near, far = (
        sign * float(change_bounds(seen[0], seen[1][None], metric, tail, seed=seed)[side][0])
        for tail in (1 - level, SIGMA_TAIL)
    )
    spread = (change - far) / scipy_stats.norm.isf(SIGMA_TAIL) * math.sqrt(1 - share)
    expected = change - max(0.0, change - near) * math.sqrt(share)  # the bound on all examples, on the worse side
    doubt = float(scipy_stats.norm.isf(error / 2)) * spread
    if expected - doubt >= -margin:
        return True
    return False if expected + doubt < -margin else None
