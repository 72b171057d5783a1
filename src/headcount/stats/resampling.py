"""Bootstrap resamples of examples as rows of counts, so that all sums of all systems are one matrix product."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

MetricOfSums = Callable[[np.ndarray], np.ndarray]
MEMORY = 256 * 2**20  # bytes that a bootstrap may use at a time
SEED = 12345  # sacrebleu's, so that the resamples are the same ones


def resampled(statistics: np.ndarray, metric: MetricOfSums, resamples: int, seed: int) -> np.ndarray:
    """Scores (R, K) of K systems (K, N, S) on the same bootstrap resamples of the N examples.

    A resample is a row of counts, so all sums of all systems are one matrix product.
    """
    K, N, S = statistics.shape
    columns = statistics.transpose(1, 0, 2).reshape(N, K * S)
    scores = np.empty((resamples, K))
    rng = np.random.default_rng(seed)
    for rows in chunks(np.arange(resamples), 8 * (5 * N + 6 * K * S)):
        # Drawn as sacrebleu draws them, so that the same seed gives the same resamples.
        drawn = rng.choice(N, size=(len(rows), N), replace=True)
        offsets = np.arange(len(rows))[:, None] * N
        counts = np.bincount((drawn + offsets).ravel(), minlength=len(rows) * N).reshape(len(rows), N)
        scores[rows] = metric((counts.astype(float) @ columns).reshape(len(rows), K, S))
    return scores


def percentiles(values: np.ndarray, level: float) -> np.ndarray:
    """The two ends of the middle `level` of each column."""
    return np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)


def chunks(items: np.ndarray, bytes_each: int) -> Iterator[np.ndarray]:
    """Runs of items that together stay within the memory budget."""
    size = max(1, MEMORY // bytes_each)
    for start in range(0, len(items), size):
        yield items[start : start + size]
