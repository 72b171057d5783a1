"""Statistics against sacrebleu, scipy, statsmodels, and slow versions written from the definitions."""

from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest
from scipy.stats import pearsonr, spearmanr, ttest_rel
from statsmodels.stats.contingency_tables import mcnemar

from headcount import stats
from headcount.tasks import metrics

WORDS = ["the", "a", "red", "cat", "dog", "sat", "ran", "on", "under", "mat", "house", ",", "."]


def share(sums):
    return sums[..., 1] / sums[..., 0]


def right(rows):
    """Statistics (..., N, 2) of examples (..., N) that are right or wrong."""
    rows = np.array(rows, float)
    return np.stack([np.ones_like(rows), rows], axis=-1)


def systems(seed, n=60):
    """References and outputs of a base and four systems, from unchanged to much worse."""
    rng = np.random.default_rng(seed)
    references = [" ".join(rng.choice(WORDS, rng.integers(4, 14))) for _ in range(n)]

    def noisy(texts, rate):
        return [" ".join(rng.choice(WORDS) if rng.random() < rate else w for w in t.split()) for t in texts]

    base = noisy(references, 0.3)
    others = [noisy(base, rate) for rate in (0.02, 0.05, 0.2)]
    return references, base, [base, *others]


@pytest.mark.parametrize(("counter", "metric"), [(BLEU(), metrics.bleu), (CHRF(), metrics.chrf)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_p_sacrebleu_is_what_sacrebleu_says(counter, metric, seed):
    references, base, others = systems(seed)
    named = [("base", base), *((str(i), texts) for i, texts in enumerate(others))]
    _, results = PairedTest(named, {"m": counter}, [references], test_type="bs", n_samples=1000)()
    published = list(results.values())[1]  # the first are the systems' names
    expected = [result.p_value for result in published[1:]]

    def count(texts):
        return np.array(counter._extract_corpus_statistics(texts, [references]), float)

    test = stats.paired_test(count(base), np.stack([count(t) for t in others]), metric, resamples=1000)
    assert test.p_sacrebleu[1:].tolist() == expected[1:]
    assert test.p_sacrebleu[0] == test.p[0] == 1  # nothing changed: sacrebleu would call that significant
    changes = [result.score - published[0].score for result in published[1:]]
    np.testing.assert_allclose(test.change, changes, atol=1e-9)


def slow_p(base, masked, metric, resamples, seed):
    """The change of one mask and its bootstrap p, one resample at a time, from the definition."""
    rng = np.random.default_rng(seed)
    changes = []
    for _ in range(resamples):
        rows = rng.choice(len(base), size=len(base), replace=True)
        changes.append(metric(masked[rows].sum(0)) - metric(base[rows].sum(0)))
    changes = np.array(changes)
    observed = metric(masked.sum(0)) - metric(base.sum(0))
    extreme = sum(abs(c - changes.mean()) >= abs(observed) * (1 - 1e-9) for c in changes)
    return observed, (extreme + 1) / (resamples + 1)


@pytest.mark.parametrize("memory", [1, 20_000, 2**28])
def test_all_masks_at_once_are_each_mask_in_a_slow_loop(monkeypatch, memory):
    monkeypatch.setattr("headcount.stats.intervals.MEMORY", memory)
    rng = np.random.default_rng(0)
    base = right(rng.random(50) < 0.8)
    masked = right(rng.random((3, 50)) < np.array([[0.8], [0.6], [0.1]]))
    masked = np.concatenate([masked, base[None]])
    test = stats.paired_test(base, masked, share, resamples=200, seed=3)
    for i in range(4):
        expected = slow_p(base, masked[i], share, 200, seed=3)
        np.testing.assert_allclose((test.change[i], test.p[i]), expected, atol=1e-12)
        low, high = stats.change_bounds(base, masked[i][None], share, seed=3)  # one mask at a time
        assert (test.low[i], test.high[i]) == pytest.approx((low[0], high[0]), abs=1e-12)


def test_p_keeps_its_promise_where_nothing_is_different():
    """Under the null hypothesis p < 0.05 in about 5% of all cases; sacrebleu's in about twice as many."""
    rng = np.random.default_rng(1)
    base = np.stack([np.ones(150), np.zeros(150)], axis=1)
    noise = rng.normal(size=(400, 150))
    masked = np.stack([np.ones_like(noise), noise], axis=-1)
    test = stats.paired_test(base, masked, share, resamples=1000)
    assert 0.025 < (test.p < 0.05).mean() < 0.08
    assert (test.p_sacrebleu < 0.05).mean() > 0.08
    covered = (test.low < 0) & (test.high > 0)
    assert 0.93 < covered.mean() < 0.995  # the imagined example makes them a little wider than 95%


def test_as_many_resamples_as_the_corrected_p_needs():
    base = right([1] * 40)
    masked = right([[0] * 40] * 70)
    test = stats.paired_test(base, masked, share, alpha=0.05)
    assert test.resamples == 14000
    assert stats.corrected(test.p, "holm").max() < 0.05
    assert stats.paired_test(base, masked[:2], share, correction_for=20).resamples == 4000
    assert stats.paired_test(base, masked[:2], share, resamples=50).resamples == 50


@given(st.integers(1, 5000), st.sampled_from([0.05, 0.01, 0.001]))
def test_the_smallest_p_can_be_significant_after_correction(tests, alpha):
    resamples = stats.resamples_needed(tests, alpha)
    assert resamples >= 1000
    assert tests / (resamples + 1) < alpha
    assert tests * (1 + 9) / (resamples + 1) < alpha  # also if a few resamples exceed


def test_shapes_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match=r"\(5, 2\) and \(1, 4, 2\)"):
        stats.paired_test(right([1] * 5), right([[1] * 4]), share)


def definition_of_mcnemar(lost, won):
    """Twice the chance of a fair coin to fall this unevenly or more."""
    n, k = lost + won, min(lost, won)
    return min(1.0, 2 * sum(comb(n, i) for i in range(k + 1)) / 2**n)


@settings(max_examples=100)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_mcnemar_is_statsmodels_and_the_definition(seed, n):
    rng = np.random.default_rng(seed)
    base, masked = rng.random(n) < 0.7, rng.random((4, n)) < 0.6
    p = stats.mcnemar_exact(base, masked)
    for i in range(4):
        lost, won = int((base & ~masked[i]).sum()), int((~base & masked[i]).sum())
        assert p[i] == pytest.approx(definition_of_mcnemar(lost, won))
        if lost + won:
            table = [[int((base & masked[i]).sum()), lost], [won, int((~base & ~masked[i]).sum())]]
            assert p[i] == pytest.approx(mcnemar(table, exact=True).pvalue)
    assert stats.mcnemar_exact(base, base[None])[0] == 1


def test_the_paired_t_test_is_scipys():
    rng = np.random.default_rng(0)
    base, masked = rng.random(80) < 0.8, rng.random((5, 80)) < 0.7
    expected = [ttest_rel(row.astype(float), base.astype(float)).pvalue for row in masked]
    np.testing.assert_allclose(stats.paired_t(base, masked), expected)
    assert stats.paired_t(base, base[None]).tolist() == [1]
    assert stats.paired_t(np.zeros(5), np.ones((1, 5))).tolist() == [0]


def slow_holm(p):
    order, adjusted, worst = np.argsort(p), np.empty(len(p)), 0.0
    for rank, i in enumerate(order):
        worst = max(worst, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = worst
    return adjusted


def slow_benjamini_hochberg(p):
    return [min(1.0, min(q * len(p) / (p <= q).sum() for q in p if q >= mine)) for mine in p]


@settings(max_examples=20)  # statsmodels collects garbage at each call: a tenth of a second
@given(st.integers(0, 2**32 - 1), st.integers(1, 25))
def test_corrections_are_their_definitions(seed, n):
    p = np.random.default_rng(seed).random(n).round(2) ** 2  # with ties
    np.testing.assert_allclose(stats.corrected(p, "holm"), slow_holm(p), atol=1e-12)
    np.testing.assert_allclose(stats.corrected(p, "bh"), slow_benjamini_hochberg(p), atol=1e-12)


def test_corrections_of_nothing_and_of_unknown_kind():
    assert stats.corrected(np.array([]), "bh").size == 0
    with pytest.raises(ValueError, match=r"'holm'.*'bh'"):
        stats.corrected(np.array([0.1]), "bonferoni")


def test_correlations_are_scipys():
    x, y = np.random.default_rng(0).normal(size=(2, 40))
    result = stats.correlation(x, x + y)
    assert (result.pearson, result.pearson_p) == pytest.approx(tuple(pearsonr(x, x + y)))
    assert (result.spearman, result.spearman_p) == pytest.approx(tuple(spearmanr(x, x + y)))
    assert result.remark == ""


@pytest.mark.parametrize(
    ("x", "y", "why"),
    [
        ([1, 2], [3, 4], "three"),
        ([1, 1, 1], [1, 2, 3], "same"),
        ([1, 2, np.nan], [1, 2, 3], "not finite"),
    ],
)
def test_an_undefined_correlation_is_said(x, y, why):
    result = stats.correlation(x, y)
    assert why in result.remark
    assert np.isnan([result.pearson, result.pearson_p, result.spearman, result.spearman_p]).all()
