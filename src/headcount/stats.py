"""Paired tests, intervals, corrections and correlations, on per-example statistics of all masks at once.

Everywhere: N examples, S statistics of an example, M masks, R resamples; a metric is a function that turns
summed statistics (..., S) into scores (...).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats as scipy_stats

MetricOfSums = Callable[[np.ndarray], np.ndarray]
MEMORY = 256 * 2**20  # bytes that a bootstrap may use at a time
SEED = 12345  # sacrebleu's, so that the resamples are the same ones


@dataclass(frozen=True)
class Test:
    """Each mask's change in a metric, (M,) arrays; a change is masked minus base.

    low, high: percentile interval of the change.
    p: two-sided, of the null hypothesis that the change is 0.
    p_sacrebleu: what sacrebleu's paired bootstrap calls p, for comparison with published numbers. It takes
        absolute values before centring, so it is about half of p: under the null hypothesis it falls below
        0.05 in about 10% of all cases.
    """

    __test__ = False  # its name would make pytest collect it

    change: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray
    p_sacrebleu: np.ndarray
    resamples: int


def paired_bootstrap(
    base: np.ndarray,
    masked: np.ndarray,
    metric: MetricOfSums,
    *,
    resamples: int | None = None,
    alpha: float = 0.05,
    level: float = 0.95,
    seed: int = SEED,
    correction_for: int | None = None,
) -> Test:
    """Test all masks against the whole model on the same resamples of the examples.

    >>> right = np.array([1.0] * 80 + [0.0] * 20)
    >>> base = np.stack([np.ones(100), right], axis=1)  # (N, S): 80 of 100 are right
    >>> worse = base * [1, 0.0]  # with the head off, none
    >>> test = paired_bootstrap(base, np.stack([base, worse]), lambda s: s[..., 1] / s[..., 0])
    >>> test.change.tolist(), test.p.round(3).tolist()
    ([0.0, -0.8], [1.0, 0.001])

    base: (N, S). masked: (M, N, S).
    resamples: default as many as a Holm-corrected p needs to be able to fall below `alpha`, at least 1000.
    correction_for: how many p are corrected together, if more than these M.
    """
    base, masked = np.asarray(base, float), np.asarray(masked, float)
    if masked.ndim != 3 or masked.shape[1:] != base.shape:
        raise ValueError(f"base is (N, S) and masked (M, N, S); got {base.shape} and {masked.shape}")
    M = len(masked)
    R = resamples or resamples_needed(correction_for or M, alpha)
    observed = metric(masked.sum(1)) - metric(base.sum(0))  # (M,)
    low, high, p, p_sacrebleu = np.zeros(M), np.zeros(M), np.ones(M), np.ones(M)
    # A mask that changes nothing needs no test.
    changed = np.flatnonzero((masked != base).any((1, 2)))
    for masks in _chunks(changed, 8 * (4 * R + 2 * base.size)):
        changes = _resampled(np.concatenate([base[None], masked[masks]]), metric, R, seed)
        changes = changes[:, 1:] - changes[:, :1]  # (R, masks)
        low[masks], high[masks] = _percentiles(changes, level)
        size = np.abs(observed[masks])
        # Centred, the resampled changes show what chance does. The tolerance keeps ties ties.
        as_large = np.abs(changes - changes.mean(0)) >= size * (1 - 1e-9)
        p[masks] = (as_large.sum(0) + 1) / (R + 1)
        absolute = np.abs(changes)
        p_sacrebleu[masks] = ((absolute - absolute.mean(0) > size).sum(0) + 1) / (R + 1)
    return Test(observed, low, high, p, p_sacrebleu, R)


def resamples_needed(tests: int, alpha: float = 0.05) -> int:
    """How many resamples let the smallest of so many Holm-corrected p fall below alpha; at least 1000.

    >>> resamples_needed(12), resamples_needed(144, alpha=0.01)
    (1000, 14400)
    """
    return max(1000, math.ceil(round(tests / alpha, 6)))


def interval(
    statistics: np.ndarray,
    metric: MetricOfSums,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = SEED,
) -> tuple[float, float]:
    """The bootstrap percentile interval of one score.

    >>> right = np.array([1.0] * 80 + [0.0] * 20)
    >>> low, high = interval(np.stack([np.ones(100), right], axis=1), lambda s: s[..., 1] / s[..., 0])
    >>> 0.70 < low < 0.8 < high < 0.90
    True

    statistics: (N, S).
    """
    scores = _resampled(np.asarray(statistics, float)[None], metric, resamples, seed)
    low, high = _percentiles(scores, level)
    return float(low[0]), float(high[0])


def mcnemar_exact(base_right: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Exact McNemar p of each mask: of the examples that flipped, do as many go one way as the other?

    >>> base = np.array([1, 1, 1, 1, 1, 1, 0, 0])
    >>> mcnemar_exact(base, np.array([base, 1 - base, [0, 0, 0, 0, 0, 0, 0, 0]])).tolist()
    [1.0, 0.2890625, 0.03125]

    base_right: (N,) whether each example is right. right: (M, N).
    """
    base_right, right = np.asarray(base_right).astype(bool), np.asarray(right).astype(bool)
    lost, won = (base_right & ~right).sum(-1), (~base_right & right).sum(-1)  # (M,)
    return np.minimum(1.0, 2 * scipy_stats.binom.cdf(np.minimum(lost, won), lost + won, 0.5))


def paired_t(base: np.ndarray, masked: np.ndarray) -> np.ndarray:
    """Paired t-test p of each mask, as M19 tests classifiers; 1 for a mask that changes nothing.

    >>> paired_t(np.array([1, 1, 0, 1]), np.array([[1, 1, 0, 1], [0, 0, 0, 1]])).round(3).tolist()
    [1.0, 0.182]

    base: (N,) a value of each example, for instance right or wrong. masked: (M, N).
    """
    difference = np.asarray(masked, float) - np.asarray(base, float)  # (M, N)
    varied = np.ptp(difference, axis=1) > 0
    # The same change everywhere is certain, no change at all is none.
    p = np.where((difference == 0).all(1), 1.0, 0.0)
    if varied.any():
        p[varied] = scipy_stats.ttest_1samp(difference[varied], 0.0, axis=1).pvalue
    return p


def corrected(p: np.ndarray, method: Literal["holm", "bh"]) -> np.ndarray:
    """p corrected for testing many heads: Holm (family-wise error) or Benjamini-Hochberg (false discoveries).

    >>> corrected(np.array([0.01, 0.04, 0.03]), "holm").tolist()
    [0.03, 0.06, 0.06]
    """
    from statsmodels.stats.multitest import multipletests  # slow to import

    names = {"holm": "holm", "bh": "fdr_bh"}
    if method not in names:
        raise ValueError(f"method is 'holm' or 'bh', not {method!r}")
    p = np.asarray(p, float)
    return multipletests(p, method=names[method])[1] if p.size else p


@dataclass(frozen=True)
class Correlation:
    """Pearson and Spearman r with their p; nan, and a remark that says why, where r is not defined."""

    pearson: float
    pearson_p: float
    spearman: float
    spearman_p: float
    remark: str = ""


def correlation(x: np.ndarray, y: np.ndarray) -> Correlation:
    """How the same heads' effects on two data sets go together.

    >>> correlation([1, 2, 3, 4], [2, 4, 6, 9]).spearman
    1.0
    >>> correlation([1, 2, 3], [5, 5, 5]).remark
    'no correlation: all values of one side are the same'
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    why = ""
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"two rows of equally many numbers are needed; got {x.shape} and {y.shape}")
    if len(x) < 3:
        why = "no correlation: fewer than three pairs"
    elif not (np.isfinite(x).all() and np.isfinite(y).all()):
        why = "no correlation: some values are not numbers"
    elif np.ptp(x) == 0 or np.ptp(y) == 0:
        why = "no correlation: all values of one side are the same"
    if why:
        return Correlation(math.nan, math.nan, math.nan, math.nan, why)
    pearson, spearman = scipy_stats.pearsonr(x, y), scipy_stats.spearmanr(x, y)
    r, r_p = float(pearson.statistic), float(pearson.pvalue)
    return Correlation(r, r_p, float(spearman.statistic), float(spearman.pvalue))


@dataclass(frozen=True)
class NonInferiority:
    """Whether the data show that a change is no worse than `-margin`.

    change: observed, in the metric's own sign. bound: its one-sided confidence bound on the worse side.
    shown: the bound is better than the margin.
    examples_needed: about how many examples would show it if the change stays as it is; None if none would.
    """

    shown: bool
    change: float
    bound: float
    margin: float
    examples_needed: int | None


def noninferior(
    base: np.ndarray,
    masked: np.ndarray,
    metric: MetricOfSums,
    margin: float,
    *,
    higher_is_better: bool = True,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = SEED,
) -> NonInferiority:
    """Is the masked (or pruned) model at most `margin` worse than the base, shown at this confidence level?

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
        raise ValueError(f"a margin is how much worse is allowed, so not negative; got {margin}")
    sign = 1.0 if higher_is_better else -1.0
    scores = _resampled(np.stack([base, masked]), metric, resamples, seed)  # (R, 2)
    changes = sign * (scores[:, 1] - scores[:, 0])  # (R,), negative is worse
    change = float(sign * (metric(masked.sum(0)) - metric(base.sum(0))))
    bound = float(np.quantile(changes, 1 - level))
    return NonInferiority(
        shown=bound > -margin,
        change=sign * change,
        bound=sign * bound,
        margin=margin,
        examples_needed=_examples_needed(len(base), float(changes.std()), change + margin, level),
    )


def _examples_needed(n: int, spread: float, room: float, level: float, power: float = 0.8) -> int | None:
    """Examples for a one-sided test at this level to succeed with this power, by the normal approximation.

    The spread of the change shrinks with the root of n; `room` is how far the change lies from the margin.
    """
    if room <= 0:
        return None
    quantiles = scipy_stats.norm.ppf(level) + scipy_stats.norm.ppf(power)
    return max(1, math.ceil(n * (quantiles * spread / room) ** 2))


def _resampled(statistics: np.ndarray, metric: MetricOfSums, resamples: int, seed: int) -> np.ndarray:
    """Scores (R, K) of K systems (K, N, S) on the same bootstrap resamples of the N examples.

    A resample is a row of counts, so all sums of all systems are one matrix product.
    """
    K, N, S = statistics.shape
    columns = statistics.transpose(1, 0, 2).reshape(N, K * S)
    scores = np.empty((resamples, K))
    rng = np.random.default_rng(seed)
    for rows in _chunks(np.arange(resamples), 8 * (5 * N + 6 * K * S)):
        # Drawn as sacrebleu draws them, so that the same seed gives the same resamples.
        drawn = rng.choice(N, size=(len(rows), N), replace=True)
        offsets = np.arange(len(rows))[:, None] * N
        counts = np.bincount((drawn + offsets).ravel(), minlength=len(rows) * N).reshape(len(rows), N)
        scores[rows] = metric((counts.astype(float) @ columns).reshape(len(rows), K, S))
    return scores


def _percentiles(values: np.ndarray, level: float) -> np.ndarray:
    """The two ends of the middle `level` of each column."""
    return np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)


def _chunks(items: np.ndarray, bytes_each: int) -> Iterator[np.ndarray]:
    """Runs of items that together stay within the memory budget."""
    size = max(1, MEMORY // bytes_each)
    for start in range(0, len(items), size):
        yield items[start : start + size]
