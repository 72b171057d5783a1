"""Paired tests of one value per example, corrections for testing many heads, and correlation over heads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats as scipy_stats


def mcnemar_exact(base_right: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The exact McNemar p of each mask: among the examples that flipped, are both directions equally likely?

    >>> base = np.array([1, 1, 1, 1, 1, 1, 0, 0])
    >>> mcnemar_exact(base, np.array([base, 1 - base, [0, 0, 0, 0, 0, 0, 0, 0]])).tolist()
    [1.0, 0.2890625, 0.03125]

    base_right: (N,) whether each example is right. right: (M, N).
    """
    base_right, right = np.asarray(base_right).astype(bool), np.asarray(right).astype(bool)
    lost, won = (base_right & ~right).sum(-1), (~base_right & right).sum(-1)  # (M,)
    return np.minimum(1.0, 2 * scipy_stats.binom.cdf(np.minimum(lost, won), lost + won, 0.5))


def paired_t(base: np.ndarray, masked: np.ndarray) -> np.ndarray:
    """The paired t-test's p of each mask, as M19 tests classifiers; 1 for a mask that changes nothing.

    >>> paired_t(np.array([1, 1, 0, 1]), np.array([[1, 1, 0, 1], [0, 0, 0, 1]])).round(3).tolist()
    [1.0, 0.182]

    base: (N,) one value per example, for instance right or wrong. masked: (M, N).
    """
    difference = np.asarray(masked, float) - np.asarray(base, float)  # (M, N)
    varied = np.ptp(difference, axis=1) > 0
    # Without variance there is no t: the same change everywhere is certain, no change anywhere is none.
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
        raise ValueError(f"expected 'holm' or 'bh', not {method!r}")
    p = np.asarray(p, float)
    return multipletests(p, method=names[method])[1] if p.size else p


@dataclass(frozen=True)
class Correlation:
    """Pearson and Spearman r with their p; nan, with a remark that says why, if r is undefined."""

    pearson: float
    pearson_p: float
    spearman: float
    spearman_p: float
    remark: str = ""


def correlation(x: np.ndarray, y: np.ndarray) -> Correlation:
    """The correlation of two rows of numbers, such as the same heads' effects on two data sets.

    >>> correlation([1, 2, 3, 4], [2, 4, 6, 9]).spearman
    1.0
    >>> correlation([1, 2, 3], [5, 5, 5]).remark
    'r is undefined: all values of one side are the same'
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    why = ""
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"expected two rows of equal length, not {x.shape} and {y.shape}")
    if len(x) < 3:
        why = "r is undefined: fewer than three pairs"
    elif not (np.isfinite(x).all() and np.isfinite(y).all()):
        why = "r is undefined: some values are not finite"
    elif np.ptp(x) == 0 or np.ptp(y) == 0:
        why = "r is undefined: all values of one side are the same"
    if why:
        return Correlation(math.nan, math.nan, math.nan, math.nan, why)
    pearson, spearman = scipy_stats.pearsonr(x, y), scipy_stats.spearmanr(x, y)
    r, r_p = float(pearson.statistic), float(pearson.pvalue)
    return Correlation(r, r_p, float(spearman.statistic), float(spearman.pvalue))
