"""The bootstrap: intervals and paired tests for any metric, with all masks on the same resamples of the examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

MetricOfSums = Callable[[np.ndarray], np.ndarray]
AnyMetric = Any  # a function of summed statistics, or an object with `of` and `of_counts`, as `tasks.Metric` has them
MEMORY = 256 * 2**20  # bytes that a bootstrap uses at a time
SEED = 12345  # sacrebleu's, so that the resamples are the same


@dataclass(frozen=True)
class Test:
    """Each mask's change in a metric, masked minus base, (M,) arrays.

    low, high: the ends of the change's percentile interval.
    p: two-sided, of the null hypothesis that the change is 0.
    p_sacrebleu: the p of sacrebleu's paired bootstrap, for comparison with published numbers. It takes absolute values
        before centring, so it is about half of p: under the null hypothesis it is below 0.05 in about 10% of cases.
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
    metric: AnyMetric,
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
    resamples: by default as many as a Holm-corrected p needs to be able to fall below `alpha`, at least 1000.
    correction_for: how many p are corrected together, if more than these M.
    """
    base, masked = np.asarray(base, float), np.asarray(masked, float)
    if masked.ndim != 3 or masked.shape[1:] != base.shape:
        raise ValueError(f"expected base (N, S) and masked (M, N, S), not {base.shape} and {masked.shape}")
    M = len(masked)
    R = resamples or resamples_needed(correction_for or M, alpha)
    observed = score(masked, metric) - score(base, metric)  # (M,)
    low, high, p, p_sacrebleu = np.zeros(M), np.zeros(M), np.ones(M), np.ones(M)
    # A mask that changes nothing needs no test.
    changed = np.flatnonzero((masked != base).any((1, 2)))
    for masks in chunks(changed, 8 * (4 * R + 2 * base.size)):
        changes = resampled(np.concatenate([base[None], masked[masks]]), metric, R, seed)
        changes = changes[:, 1:] - changes[:, :1]  # (R, masks)
        low[masks], high[masks] = percentiles(changes, level)
        size = np.abs(observed[masks])
        # Centred, the resampled changes are what chance alone does. The tolerance keeps ties ties.
        as_large = np.abs(changes - changes.mean(0)) >= size * (1 - 1e-9)
        p[masks] = (as_large.sum(0) + 1) / (R + 1)
        absolute = np.abs(changes)
        p_sacrebleu[masks] = ((absolute - absolute.mean(0) > size).sum(0) + 1) / (R + 1)
    return Test(observed, low, high, p, p_sacrebleu, R)


def resamples_needed(tests: int, alpha: float = 0.05) -> int:
    """How many resamples the smallest of `tests` Holm-corrected p needs to fall below alpha; at least 1000.

    >>> resamples_needed(12), resamples_needed(144, alpha=0.01)
    (1000, 14400)
    """
    return max(1000, math.ceil(round(tests / alpha, 6)))


def interval(
    statistics: np.ndarray,
    metric: AnyMetric,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = SEED,
) -> tuple[float, float]:
    """The percentile interval of one score.

    >>> right = np.array([1.0] * 80 + [0.0] * 20)
    >>> low, high = interval(np.stack([np.ones(100), right], axis=1), lambda s: s[..., 1] / s[..., 0])
    >>> 0.70 < low < 0.8 < high < 0.90
    True

    statistics: (N, S).
    """
    scores = resampled(np.asarray(statistics, float)[None], metric, resamples, seed)
    low, high = percentiles(scores, level)
    return float(low[0]), float(high[0])


def resampled(statistics: np.ndarray, metric: AnyMetric, resamples: int, seed: int) -> np.ndarray:
    """Scores (R, K) of K systems (K, N, S) on the same bootstrap resamples of the N examples.

    A resample is a row of counts, so all sums of all systems are one matrix product.
    """
    K, N, S = statistics.shape
    columns = statistics.transpose(1, 0, 2).reshape(N, K * S)
    scores = np.empty((resamples, K))
    rng = np.random.default_rng(seed)
    for rows in chunks(np.arange(resamples), 8 * (5 * N + 6 * K * S)):
        # Drawn as in sacrebleu, so that the same seed gives the same resamples.
        drawn = rng.choice(N, size=(len(rows), N), replace=True)
        offsets = np.arange(len(rows))[:, None] * N
        counts = np.bincount((drawn + offsets).ravel(), minlength=len(rows) * N).reshape(len(rows), N)
        if getattr(metric, "of_rows", None) is not None:
            scores[rows] = np.stack([metric.of_counts(system, counts) for system in statistics], axis=1)
        else:
            sums = (counts.astype(float) @ columns).reshape(len(rows), K, S)
            scores[rows] = getattr(metric, "of_sums", metric)(sums)
    return scores


def score(statistics: np.ndarray, metric: AnyMetric) -> np.ndarray:
    """The metric of all examples: (..., N, S) to (...)"""
    return metric.of(statistics) if hasattr(metric, "of") else metric(statistics.sum(-2))


def percentiles(values: np.ndarray, level: float) -> np.ndarray:
    """The two ends of the middle `level` of each column."""
    return np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)


def chunks(items: np.ndarray, bytes_each: int) -> Iterator[np.ndarray]:
    """Runs of items that together stay within the memory budget."""
    size = max(1, MEMORY // bytes_each)
    for start in range(0, len(items), size):
        yield items[start : start + size]
