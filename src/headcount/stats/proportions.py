"""Means of 0/1 outcomes: exact intervals for one, score intervals for two on the same examples.

A bootstrap of right-or-wrong outcomes has no width where nothing flips, however few the examples. These have: with no
flip in n examples, the bounds at 95% confidence are about 3 / n (the rule of three).
"""

from __future__ import annotations

import numpy as np
from scipy import stats as scipy_stats

HALVINGS = 60  # of the range of a bound, until floating-point numbers end


def clopper_pearson(right: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share (Clopper and Pearson 1934): both bounds miss in at most (1 - level) / 2 of cases.

    >>> low, high = clopper_pearson(1, 1)
    >>> round(low, 3), high
    (0.025, 1.0)
    """
    tail = (1 - level) / 2
    low = 0.0 if right == 0 else float(scipy_stats.beta.ppf(tail, right, n - right + 1))
    high = 1.0 if right == n else float(scipy_stats.beta.ppf(1 - tail, right + 1, n - right))
    return low, high


def paired_bounds(lost: np.ndarray, won: np.ndarray, n: int, tail: float = 0.025) -> tuple[np.ndarray, np.ndarray]:
    """The lower and the upper bound of P(won) - P(lost), each missing in about `tail` of cases.

    Tango's score interval (1998). Where all flips go one way, the bound on that side is Clopper and Pearson's exact one
    of a single proportion, as the score interval is slightly too narrow there.

    >>> low, high = paired_bounds(np.array([0, 12]), np.array([0, 2]), n=100)
    >>> low.round(3).tolist(), high.round(3).tolist()
    ([-0.037, -0.182], [0.037, -0.031])

    lost, won: (M,) how many of the n examples turned from right to wrong, and from wrong to right.
    """
    lost, won = np.asarray(lost, float), np.asarray(won, float)
    return -_largest_loss(lost, won, n, tail), _largest_loss(won, lost, n, tail)


def unseen_share(n: int, tail: float = 0.05) -> float:
    """The largest share of all examples that n of them can miss by chance with probability `tail`: about 3 / n at 5%.

    >>> round(unseen_share(300), 4), round(unseen_share(3), 2)
    (0.0099, 0.63)
    """
    return 1 - tail ** (1 / n)


def _largest_loss(lost: np.ndarray, won: np.ndarray, n: int, tail: float) -> np.ndarray:
    """The largest P(lost) - P(won) that the score test does not reject, found by halving the range."""
    critical = scipy_stats.norm.isf(tail)
    low, high = (lost - won) / n, np.ones(lost.shape)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        inside = _score(lost, won, n, middle) <= critical
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    exact = scipy_stats.beta.isf(tail, lost + 1, np.maximum(n - lost, 1e-9))
    return np.where((won == 0) & (lost < n), np.maximum(low, exact), low)


def _score(lost: np.ndarray, won: np.ndarray, n: int, loss: np.ndarray) -> np.ndarray:
    """Tango's statistic for P(lost) - P(won) = loss, with P(won) at its maximum likelihood under that constraint."""
    a, b, c = 2 * n, (2 * n - lost + won) * loss - lost - won, -won * loss * (1 - loss)
    won_share = (np.sqrt(np.maximum(b * b - 4 * a * c, 0)) - b) / (2 * a)
    variance = n * (2 * won_share + loss * (1 - loss))
    return (n * loss - (lost - won)) / np.sqrt(np.maximum(variance, 1e-300))
