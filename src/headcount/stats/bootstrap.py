"""The bootstrap: paired tests and bounds for any metric, with all masks on the same resamples of the examples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

AnyMetric = Any  # a function of summed statistics, or an object with `of` and `of_counts`, as `tasks.Metric` has them
MEMORY = 256 * 2**20  # bytes that a bootstrap uses at a time
SEED = 12345  # sacrebleu's, so that the resamples are the same


def bootstrap_p(
    base: np.ndarray, masked: np.ndarray, metric: AnyMetric, resamples: int, seed: int = SEED
) -> tuple[np.ndarray, np.ndarray]:
    """The two-sided p of each mask's change, and sacrebleu's; both (M,), and 1 for a mask that changes nothing.

    base: (N, S). masked: (M, N, S).
    """
    p, p_sacrebleu = np.ones(len(masked)), np.ones(len(masked))
    observed = score(masked, metric) - score(base, metric)  # (M,)
    changed = np.flatnonzero((masked != base).any((1, 2)))
    for masks in chunks(changed, 8 * (4 * resamples + 2 * base.size)):
        changes = resampled(np.concatenate([base[None], masked[masks]]), metric, resamples, seed)
        changes = changes[:, 1:] - changes[:, :1]  # (R, masks)
        size = np.abs(observed[masks])
        # Centred, the resampled changes are what chance alone does. The tolerance keeps ties ties.
        as_large = np.abs(changes - changes.mean(0)) >= size * (1 - 1e-9)
        p[masks] = (as_large.sum(0) + 1) / (resamples + 1)
        absolute = np.abs(changes)
        p_sacrebleu[masks] = ((absolute - absolute.mean(0) > size).sum(0) + 1) / (resamples + 1)
    return p, p_sacrebleu


def resamples_needed(tests: int, alpha: float = 0.05) -> int:
    """How many resamples a Holm-corrected p needs: ten can exceed, and the smallest of `tests` p is still below alpha.

    >>> resamples_needed(12), resamples_needed(144, alpha=0.01)
    (2400, 144000)
    """
    return max(1000, 10 * math.ceil(round(tests / alpha, 6)))


def resampled(statistics: np.ndarray, metric: AnyMetric, resamples: int, seed: int) -> np.ndarray:
    """Scores (R, K) of K systems (K, N, S) on the same bootstrap resamples of the N examples.

    A resample is a row of counts, so all sums of all systems are one matrix product.
    """
    K, N, S = statistics.shape
    scores = np.empty((resamples, K))
    rng = np.random.default_rng(seed)
    for rows in chunks(np.arange(resamples), 8 * (5 * N + 6 * K * S)):
        # Drawn as in sacrebleu, so that the same seed gives the same resamples.
        drawn = rng.choice(N, size=(len(rows), N), replace=True)
        offsets = np.arange(len(rows))[:, None] * N
        counts = np.bincount((drawn + offsets).ravel(), minlength=len(rows) * N).reshape(len(rows), N)
        scores[rows] = weighted_scores(statistics, metric, counts.astype(float))
    return scores


def weighted_scores(statistics: np.ndarray, metric: AnyMetric, weights: np.ndarray) -> np.ndarray:
    """Scores (R, K) of K systems (K, N, S), each example counted as often as weights (R, N) say."""
    K, N, S = statistics.shape
    if _is_of_rows(metric):
        return np.stack([metric.of_counts(system, weights) for system in statistics], axis=1)
    columns = statistics.transpose(1, 0, 2).reshape(N, K * S)
    return np.asarray(_of_sums(metric)((weights @ columns).reshape(len(weights), K, S)))


def random_weights(metric: AnyMetric, examples: int, resamples: int, seed: int = SEED) -> Iterator[np.ndarray]:
    """Weights of a Bayesian bootstrap (Rubin 1981), in parts (r, N) that fit into memory.

    They vary continuously, so that bounds do not jump from one whole example to the next. A metric that is a function
    of rows, not of sums, gets counts of whole examples.
    """
    rng = np.random.default_rng(seed)
    for rows in chunks(np.arange(resamples), 8 * 4 * examples):
        if _is_of_rows(metric):
            yield rng.multinomial(examples, np.full(examples, 1 / examples), size=len(rows)).astype(float)
        else:
            yield rng.standard_exponential((len(rows), examples))


def score(statistics: np.ndarray, metric: AnyMetric) -> np.ndarray:
    """The metric of all examples: (..., N, S) to (...)"""
    return np.asarray(metric.of(statistics) if hasattr(metric, "of") else metric(statistics.sum(-2)))


def score_with_each(statistics: np.ndarray, metric: AnyMetric) -> np.ndarray:
    """The metric with each example counted once more, in turn: (N, S) to (N,)"""
    if _is_of_rows(metric):
        return np.asarray(metric.of_counts(statistics, 1.0 + np.eye(len(statistics))))
    return np.asarray(_of_sums(metric)(statistics.sum(0) + statistics))


def chunks(items: np.ndarray, bytes_each: int) -> Iterator[np.ndarray]:
    """Runs of items that together stay within the memory budget."""
    size = max(1, MEMORY // bytes_each)
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _is_of_rows(metric: AnyMetric) -> bool:
    return getattr(metric, "of_rows", None) is not None


def _of_sums(metric: AnyMetric) -> Any:
    return getattr(metric, "of_sums", metric)
