"""Paired tests: of a difference, corrected for many heads; of non-inferiority; and correlation over heads.

Non-inferiority is evidence that a pruned model is at most a margin worse, not mere lack of evidence that it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats as scipy_stats

from headcount.errors import counted
from headcount.stats.intervals import (
    RESAMPLES,
    SEED,
    AnyMetric,
    are_outcomes,
    bootstrap_p,
    change_bounds,
    resamples_needed,
    score,
)

TIE = 1e-9  # as a share of the limit: closer than that, a value and its limit are the same number, rounded differently


@dataclass(frozen=True)
class NonInferiority:
    """Whether the data show that a change is at most `margin` for the worse.

    change: observed, in the metric's own sign. bound: its one-sided confidence bound on the worse side.
    shown: the bound is within the margin, or equal to it.
    examples_needed: about how many examples would show it if the change stays the same, to two digits; None if no
        number would, or the level is one half, at which the observed change decides.
    """

    shown: bool
    change: float
    bound: float
    margin: float
    examples_needed: int | None


def noninferior(
    base: np.ndarray,
    masked: np.ndarray,
    metric: AnyMetric,
    margin: float,
    *,
    higher_is_better: bool = True,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> NonInferiority:
    """Test at this confidence level whether the masked (or pruned) model is at most `margin` worse than the base.

    >>> right = np.array([1.0] * 160 + [0.0] * 40)
    >>> base = np.stack([np.ones(200), right], axis=1)
    >>> masked = base.copy()
    >>> masked[:2, 1] = 0  # two more mistakes in 200
    >>> result = noninferior(base, masked, lambda s: s[..., 1] / s[..., 0], margin=0.05)
    >>> result.shown, round(result.change, 3)
    (True, -0.01)

    base, masked: (N, S). margin: positive, in the metric's unit. level: 0.5 goes by the observed change.
    """
    base, masked = np.asarray(base, float), np.asarray(masked, float)
    if margin < 0:
        raise ValueError(f"expected a margin of 0 or more, not {margin}")
    sign = 1.0 if higher_is_better else -1.0
    bound = change = float(score(masked, metric) - score(base, metric))
    if level > 0.5:  # at one half, the observed change decides
        ends = change_bounds(base, masked[None], metric, 1 - level, resamples=resamples, seed=seed)
        bound = float(ends[0 if higher_is_better else 1][0])
    room = sign * change + margin
    if room <= 0 or level <= 0.5:
        needed = None
    elif are_outcomes(base, metric) and (masked[:, 1] == base[:, 1]).all():  # the rule of three
        needed = 1 if room >= 1 else about(math.log(1 - level) / math.log(1 - room))
    else:
        needed = _examples_needed(len(base), sign * (change - bound), room, level)
    return NonInferiority(at_most(-sign * bound, margin), change, bound, margin, needed)


def at_most(value: float, limit: float) -> bool:
    """Whether value <= limit, where a tie is within the limit however it was rounded.

    >>> 0.8 - 0.795 <= 0.005, at_most(0.8 - 0.795, 0.005), at_most(0.00501, 0.005)
    (False, True, False)
    """
    return bool(value <= limit + TIE * max(abs(limit), TIE))


def about(number: float) -> int:
    """A number of examples to the two digits that such a guess carries, rounded up.

    >>> about(33_574), about(7.2)
    (34000, 8)
    """
    step = 10 ** max(0, math.floor(math.log10(max(1.0, number))) - 1)
    return max(1, math.ceil(round(number / step, 6)) * step)


def _examples_needed(n: int, distance: float, room: float, level: float, power: float = 0.8) -> int:
    """How many examples a one-sided test at this level needs for this power, by the normal approximation.

    The distance of the bound from the change shrinks with the root of n; `room` is that of the change from the margin.
    """
    one, other = (float(scipy_stats.norm.ppf(share)) for share in (level, power))
    return about(n * ((one + other) / one * distance / room) ** 2)


MCNEMAR, BOOTSTRAP = "exact McNemar", "paired bootstrap"


@dataclass(frozen=True)
class Test:
    """Each mask's change in a metric, masked minus base, (M,) arrays.

    low, high: the ends of the change's interval (intervals.py).
    p: two-sided, of the null hypothesis that the change is 0: the exact McNemar test if the metric is a mean of 0/1
        outcomes, the paired bootstrap otherwise; `test` says which. resamples: of the bootstrap.
    p_sacrebleu: the p of sacrebleu's paired bootstrap, for comparison with published numbers. It takes absolute values
        before centring, so it is about half of p: under the null hypothesis it is below 0.05 in about 10% of cases.
    """

    __test__ = False  # its name would make pytest collect it

    change: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray
    p_sacrebleu: np.ndarray | None
    test: str
    resamples: int


def paired_test(
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
    """Test all masks against the whole model on the same examples.

    >>> right = np.array([1.0] * 80 + [0.0] * 20)
    >>> base = np.stack([np.ones(100), right], axis=1)  # (N, S): 80 of 100 are right
    >>> worse = base * [1, 0.0]  # with the head off, none
    >>> test = paired_test(base, np.stack([base, worse]), lambda s: s[..., 1] / s[..., 0])
    >>> test.change.tolist(), test.p.round(3).tolist(), test.test
    ([0.0, -0.8], [1.0, 0.001], 'paired bootstrap')

    base: (N, S). masked: (M, N, S).
    resamples: by default as many as a Holm-corrected p needs to be able to fall below `alpha`, at least 1000.
    correction_for: how many p are corrected together, if more than these M.
    """
    base, masked = np.asarray(base, float), np.asarray(masked, float)
    if masked.ndim != 3 or masked.shape[1:] != base.shape:
        raise ValueError(f"expected base (N, S) and masked (M, N, S), not {base.shape} and {masked.shape}")
    R = resamples or resamples_needed(correction_for or len(masked), alpha)
    change = score(masked, metric) - score(base, metric)  # (M,)
    low, high = change_bounds(base, masked, metric, (1 - level) / 2, seed=seed)
    if are_outcomes(base, metric) and are_outcomes(masked, metric):
        return Test(change, low, high, mcnemar_exact(base[:, 1], masked[..., 1]), None, MCNEMAR, R)
    return Test(change, low, high, *bootstrap_p(base, masked, metric, R, seed), BOOTSTRAP, R)


@dataclass(frozen=True)
class Effects:
    """The change under each mask with its tests, (M,) arrays.

    `p` is the exact McNemar test for accuracy and exact match, and the paired bootstrap for every other metric;
    `p_holm` and `p_bh` are corrected for testing many heads. `p_t` is M19's paired t-test, beside McNemar's.
    """

    score: np.ndarray
    change: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray
    p_holm: np.ndarray
    p_bh: np.ndarray
    p_t: np.ndarray | None
    test: str
    resamples: int

    def __repr__(self) -> str:
        return f"<{counted(len(self.change), 'effect')}, {self.test}>"


def paired_effects(
    base: np.ndarray,
    masked: np.ndarray,
    metric: AnyMetric,
    resamples: int | None = None,
    alpha: float = 0.05,
    seed: int = SEED,
) -> Effects:
    """Test statistics (M, N, S) against those (N, S) of the whole model on the same examples."""
    tested = paired_test(base, masked, metric, resamples=resamples, alpha=alpha, seed=seed)
    return Effects(
        score=score(masked, metric),
        change=tested.change,
        low=tested.low,
        high=tested.high,
        p=tested.p,
        p_holm=corrected(tested.p, "holm"),
        p_bh=corrected(tested.p, "bh"),
        p_t=paired_t(base[:, 1], masked[..., 1]) if tested.test == MCNEMAR else None,
        test=tested.test,
        resamples=tested.resamples,
    )


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
