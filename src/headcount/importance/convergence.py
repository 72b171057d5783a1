"""How many examples an order of heads needs: two halves that have seen nothing in common should agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import stats as scipy_stats

PAIRS = 20


@dataclass(frozen=True)
class Convergence:
    """Agreement of two estimates from `sizes[i]` rows each that share none: mean Spearman r over random pairs.

    stable_at: the smallest size from which on r stays at or above `target`; None if these rows are too few to tell.
    """

    sizes: tuple[int, ...]
    agreement: tuple[float, ...]
    target: float
    stable_at: int | None


def convergence(
    values: np.ndarray, for_order: Callable[[np.ndarray], np.ndarray], *, target: float = 0.95, seed: int = 0
) -> Convergence:
    """Compare estimates from disjoint random rows, for sizes 8, 16, 32, … up to half of the rows.

    >>> rng = np.random.default_rng(0)
    >>> values = np.arange(12.0) + rng.normal(size=(400, 12))  # twelve heads, one apart, with noise
    >>> convergence(values, lambda raw: raw).stable_at
    8

    values: (rows, heads). for_order: turns mean scores (heads,) into what the order is taken from.
    """
    values = np.asarray(values, np.float64)
    half, rng = len(values) // 2, np.random.default_rng(seed)
    sizes = [size for size in (8 * 2**k for k in range(40)) if size < half] + [half] * (half >= 2)
    if values.shape[1] < 3 or not sizes:
        return Convergence((), (), target, None)
    agreement = []
    for size in sizes:
        found = []
        for _ in range(PAIRS):
            drawn = rng.permutation(len(values))[: 2 * size]
            one, other = (for_order(values[part].mean(0)) for part in (drawn[:size], drawn[size:]))
            varied = np.ptp(one) > 0 and np.ptp(other) > 0
            found.append(float(scipy_stats.spearmanr(one, other).statistic) if varied else 0.0)
        agreement.append(float(np.mean(found)))
    good = [value >= target for value in agreement]
    first = next((i for i in range(len(sizes)) if all(good[i:])), None)
    return Convergence(tuple(sizes), tuple(agreement), target, None if first is None else sizes[first])
