"""Tests of right or wrong per example, and what testing many heads does to their p."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy import stats as scipy_stats


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
