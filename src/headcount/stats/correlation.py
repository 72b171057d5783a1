"""Do the same heads matter on two data sets?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats as scipy_stats


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
