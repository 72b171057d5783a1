"""Intervals and verdicts: published numbers, slow versions from the definitions, and a simulation of false verdicts."""

import numpy as np
import pytest
from scipy import optimize
from scipy import stats as scipy_stats

from headcount import stats
from headcount.stats.intervals import clopper_pearson, paired_bounds
from headcount.tasks.metrics import CLASSIFICATION, EMBEDDING, LANGUAGE, REGRESSION, SPEECH, TRANSLATION

ACCURACY = CLASSIFICATION["accuracy"]
BOUNDED = [*CLASSIFICATION.values(), *TRANSLATION.values()]


def right(rows):
    """Statistics (..., N, 3) of examples (..., N) that are right or wrong."""
    rows = np.array(rows, float)
    return np.stack([np.ones_like(rows), rows, np.zeros_like(rows)], axis=-1)


def flipped(n, lost, won):
    """Statistics of a model and of another that loses and wins this many of n examples, half of which were right."""
    before = np.arange(n) < n // 2
    after = before.copy()
    after[:lost] = False
    after[n - won :] = True
    return right(before), right(after)


def predicted(true, guess):
    """Statistics (N, 9) of two classes."""
    n, each = len(true), np.arange(len(true))
    rows = np.zeros((n, 9))
    rows[:, 0], rows[:, 1], rows[:, 2] = 1, true == guess, 0.3
    rows[each, 3 + true] = rows[each, 5 + guess] = 1
    rows[each, 7 + true] = true == guess
    return rows


def test_tangos_interval_is_the_published_one():
    """Bentur et al. 2009, 1 of 21 improved and 7 worsened: -0.517 to -0.026 (Fagerland, Lydersen and Laake 2014)."""
    low, high = paired_bounds(np.array([7]), np.array([1]), 21)
    assert (round(low[0], 3), round(high[0], 3)) == (-0.517, -0.026)


def score_by_definition(lost, won, n, loss):
    """The score statistic, with the likelihood maximised numerically instead of by its closed form."""

    def unlikely(won_share):
        lost_share = won_share + loss
        rest = 1 - won_share - lost_share
        return -(lost * np.log(lost_share) + won * np.log(won_share) + (n - lost - won) * np.log(rest))

    most = (1 - loss) / 2
    best = optimize.minimize_scalar(unlikely, bounds=(1e-12, most - 1e-12), method="bounded", options={"xatol": 1e-12})
    return (n * loss - (lost - won)) / np.sqrt(n * (2 * best.x + loss * (1 - loss)))


@pytest.mark.parametrize(("lost", "won", "n"), [(5, 3, 40), (12, 2, 100), (3, 9, 50), (1, 1, 872)])
def test_tangos_bounds_are_where_the_score_test_rejects(lost, won, n):
    low, high = paired_bounds(np.array([lost]), np.array([won]), n, tail=0.05)
    critical = scipy_stats.norm.isf(0.05)
    assert score_by_definition(lost, won, n, -low[0]) == pytest.approx(critical, abs=1e-4)
    assert score_by_definition(won, lost, n, high[0]) == pytest.approx(critical, abs=1e-4)


def test_one_share_has_scipys_exact_interval():
    for k, n in ((0, 1), (1, 1), (3, 10), (300, 400)):
        expected = scipy_stats.binomtest(k, n).proportion_ci(0.95, method="exact")
        assert clopper_pearson(k, n) == pytest.approx((expected.low, expected.high))
        assert stats.interval(right([1] * k + [0] * (n - k)), ACCURACY) == pytest.approx(clopper_pearson(k, n))


def test_the_bootstrap_with_an_imagined_example_is_the_exact_interval_of_a_share():
    """Gaffke's bound is Clopper and Pearson's for 0/1 outcomes: an independent road to the same number."""
    rows = np.stack([np.full(40, 2.0), 2.0 * (np.arange(40) < 37), np.zeros(40)], axis=1)  # two tokens each
    assert stats.interval(rows, ACCURACY, resamples=40_000) == pytest.approx(clopper_pearson(37, 40), abs=0.004)


@pytest.mark.parametrize("metric", BOUNDED, ids=lambda metric: metric.name)
@pytest.mark.parametrize("n", [1, 3, 30])
def test_identical_examples_show_nothing_beyond_the_rule_of_three(metric, n):
    rows = {
        "bleu": [12.0, 12, 10, 8, 6, 4, 12, 11, 10, 9],
        "chrf": [9.0, 9, 9, 8, 8, 8, 7, 7, 7, 6, 6, 6, 5, 5, 5, 4, 4, 4],
        "exact_match": [1.0, 1.0],
        "perplexity": [12.0, 4.0, 30.0],
        "logit_difference": [1.0, 1.0, 0.3, 2.0],
    }.get(metric.name, [1.0, 1.0, 0.3, 0, 1, 0, 1, 0, 1])
    base = np.tile(rows, (n, 1))
    whole = float(metric.of(base))
    least = 0.4 * stats.unseen_share(n, 0.05) * (1 if metric.points < 1 and not metric.relative else whole)
    result = stats.noninferior(base, base, metric, 1e-3, higher_is_better=metric.higher_is_better)
    assert not result.shown
    assert abs(result.bound) > least
    low, high = stats.interval(base, metric)
    assert high - low > least
    ends = stats.change_bounds(base, base[None], metric)
    assert ends[0][0] < -least
    assert ends[1][0] > least


X, Y = np.random.default_rng(0).random((2, 4))
PAIRS = np.stack([np.ones(4), X, Y, X * X, Y * Y, X * Y, (X - Y) ** 2], axis=1)
FEW = [  # four examples of each, as its metric takes them
    (REGRESSION["pearson"], PAIRS),
    (REGRESSION["mse"], PAIRS),
    (EMBEDDING["spearman"], PAIRS[:, 1:3]),
    (EMBEDDING["recall@1"], np.tile(np.eye(4), 2)),
    (LANGUAGE["perplexity"], np.stack([np.ones(4), Y, X], axis=1)),
    (LANGUAGE["loss"], np.stack([np.ones(4), Y, X], axis=1)),
]


@pytest.mark.parametrize(("metric", "rows"), FEW, ids=[metric.name for metric, _ in FEW])
def test_intervals_of_few_examples_end_where_the_metric_does(metric, rows):
    """Four examples say little, but never that a correlation may be 2, or a loss below 0."""
    low, high = stats.interval(rows, metric)
    least, greatest = metric.bounds
    assert least <= low <= float(metric.of(rows)) <= high <= greatest
    assert low < high


def test_nothing_is_shown_on_three_examples_and_little_on_few():
    three = stats.noninferior(right([1, 1, 1]), right([1, 1, 1]), ACCURACY, margin=0.005)
    assert (three.shown, three.examples_needed) == (False, 600)
    assert three.bound == pytest.approx(-(1 - 0.05 ** (1 / 3)))
    margin = stats.unseen_share(300)
    assert stats.noninferior(*flipped(300, 0, 0), ACCURACY, margin).shown  # a tie is within the margin
    assert not stats.noninferior(*flipped(300, 0, 0), ACCURACY, margin * (1 - 1e-6)).shown


@pytest.mark.parametrize("wobble", [0, 1e-17, -1e-17, 3e-16])
def test_a_tie_between_bound_and_margin_is_within_it(wobble):
    margin = -stats.noninferior(*flipped(200, 4, 1), ACCURACY, margin=1).bound
    assert stats.noninferior(*flipped(200, 4, 1), ACCURACY, margin=margin + wobble).shown
    assert stats.at_most(0.88 - 0.87, 0.01)
    assert stats.at_most(0.0, 0.0)
    assert not stats.at_most(1e-12, 0.0)


def test_non_inferiority_needs_enough_examples():
    base, worse = flipped(100, 2, 1)
    few = stats.noninferior(base, worse, ACCURACY, margin=0.02)
    assert not few.shown
    assert few.change == pytest.approx(-0.01)
    assert few.bound < -0.02
    many = -(-few.examples_needed // 100)
    assert many > 1
    enough = stats.noninferior(np.tile(base, (many, 1)), np.tile(worse, (many, 1)), ACCURACY, margin=0.02)
    assert enough.shown
    part = stats.noninferior(np.tile(base, (many // 4, 1)), np.tile(worse, (many // 4, 1)), ACCURACY, margin=0.02)
    assert not part.shown


def test_numbers_of_examples_have_two_digits():
    for lost, won in ((2, 1), (3, 2), (5, 4)):
        needed = stats.noninferior(*flipped(100, lost, won), ACCURACY, margin=0.011).examples_needed
        assert len(str(needed).rstrip("0")) <= 2
    assert stats.about(33_574) == 34_000


def test_what_lies_beyond_the_margin_is_never_shown():
    base, worse = right([1] * 100), right([1] * 90 + [0] * 10)
    result = stats.noninferior(base, worse, ACCURACY, margin=0.05)
    assert not result.shown
    assert result.examples_needed is None


def test_for_a_loss_higher_is_worse():
    loss = LANGUAGE["loss"]
    base = np.stack([np.ones(400), np.ones(400), np.linspace(1, 2, 400)], axis=1)
    worse, better = base + np.array([0, 0, 0.3]), base - np.array([0, 0, 0.3])
    result = stats.noninferior(base, worse, loss, margin=0.1, higher_is_better=False)
    assert not result.shown
    assert result.change == pytest.approx(0.3)
    assert 0.3 < result.bound < 0.4
    assert stats.noninferior(base, better, loss, margin=0.1, higher_is_better=False).shown
    with pytest.raises(ValueError, match=r"-1\b"):
        stats.noninferior(base, base, loss, margin=-1)


def drawn(rng, population, n):
    base, masked = population
    rows = rng.integers(len(base), size=n)
    return base[rows], masked[rows]


def right_or_wrong_population(rng, lost, won, size=20_000):
    true = (rng.random(size) < 0.6).astype(int)
    correct = rng.random(size) < 0.88
    chance = rng.random(size)
    still = np.where(correct, chance >= lost / 0.88, chance < won / 0.12)
    return tuple(predicted(true, np.where(one, true, 1 - true)) for one in (correct, still))


def losses_population(rng, share=0.05, nats=0.4, size=20_000, draw=None):
    """Tokens and summed losses; the pruned model's rise in this share of texts, by this much per token on average."""
    tokens = rng.integers(5, 40, size).astype(float)
    base = tokens * rng.gamma(6, 0.5, size)
    rises = rng.exponential(nats, size) if draw is None else draw(rng, size)
    rise = tokens * np.where(rng.random(size) < share, rises, rng.normal(0, 0.01, size))
    return tuple(np.stack([tokens, tokens, one], axis=1) for one in (base, base + rise))


@pytest.mark.parametrize(
    ("metric", "make"),
    [
        (ACCURACY, lambda rng: right_or_wrong_population(rng, 0.03, 0.01)),
        (ACCURACY, lambda rng: right_or_wrong_population(rng, 0.02, 0.0)),
        (CLASSIFICATION["f1"], lambda rng: right_or_wrong_population(rng, 0.03, 0.01)),
        (CLASSIFICATION["matthews"], lambda rng: right_or_wrong_population(rng, 0.03, 0.0)),
        (LANGUAGE["perplexity"], losses_population),
        (LANGUAGE["perplexity"], lambda rng: losses_population(rng, share=0.02, nats=1.0)),
    ],
)
@pytest.mark.parametrize("n", [30, 135, 400])
def test_a_drop_equal_to_the_margin_is_seldom_shown_to_be_within_it(metric, make, n):
    """benchmarks/coverage.py has the long simulation; this one would find the percentile bootstrap's 10 to 50%."""
    rng, trials = np.random.default_rng(0), 250
    population = make(rng)
    before, after = (float(metric.of(one)) for one in population)
    shown = 0
    for _ in range(trials):
        base, masked = drawn(rng, population, n)
        margin = abs(after - before) * (float(metric.of(base)) / before if metric.relative else 1)
        higher = metric.higher_is_better
        shown += stats.noninferior(base, masked, metric, margin, higher_is_better=higher, resamples=400).shown
    assert shown <= scipy_stats.binom.ppf(0.999, trials, 0.06)
    large = drawn(rng, population, 8000)
    allowed = 4 * abs(after - before)
    assert stats.noninferior(*large, metric, allowed, higher_is_better=metric.higher_is_better).shown  # it has power


@pytest.mark.parametrize(
    "population",
    [
        {"share": 0.01, "nats": 2.0},
        {"share": 0.005, "nats": 4.0},
        {"share": 0.02, "draw": lambda rng, size: rng.pareto(2, size)},  # of infinite variance
        {"share": 0.01, "draw": lambda rng, size: rng.lognormal(0, 1.2, size)},
    ],
)
def test_few_losses_that_rise_by_much_are_seldom_overlooked(population):
    """600 texts: few enough to hold none of the losses that rise, and enough to show a rise of 2% in others."""
    rng, trials, metric = np.random.default_rng(0), 250, LANGUAGE["perplexity"]
    both = losses_population(rng, **population)
    before, after = (float(metric.of(one)) for one in both)
    shown = 0
    for _ in range(trials):
        base, masked = drawn(rng, both, 600)
        margin = (after / before - 1) * float(metric.of(base))
        shown += stats.noninferior(base, masked, metric, margin, higher_is_better=False, resamples=300).shown
    assert shown <= 0.06 * trials
    enough = 4 * (after / before - 1) * before
    assert stats.noninferior(*drawn(rng, both, 4000), metric, enough, higher_is_better=False).shown


@pytest.mark.parametrize(("n", "margin"), [(30, 0.1), (100, 0.05), (135, 0.02), (436, 0.01)])
def test_no_rate_of_flips_makes_false_verdicts_of_accuracy_frequent(n, margin):
    """Exact: every outcome of lost and won examples that is shown to be within the margin, times its probability."""
    most = min(n, 60)  # more flips than that are never shown here
    lost, won = (one.ravel() for one in np.meshgrid(np.arange(most + 1), np.arange(most + 1)))
    possible = lost + won <= n
    lost, won = lost[possible], won[possible]
    low, _ = paired_bounds(lost, won, n, tail=0.05)
    shown = -low <= margin
    assert shown.any()
    for won_share in (1e-9, 0.002, 0.01, 0.03, 0.05):
        shares = (won_share + margin, won_share, 1 - 2 * won_share - margin)
        chance = scipy_stats.multinomial.pmf(np.stack([lost, won, n - lost - won], axis=1)[shown], n, shares)
        assert chance.sum() <= 0.06


@pytest.mark.parametrize(("metric", "row"), [(SPEECH["wer"], [9.0, 1.0]), (LANGUAGE["perplexity"], [12.0, 4.0, 30.0])])
def test_at_one_half_the_observed_change_decides(metric, row):
    """Also where bounds leave room for kinds of examples that so few did not show."""
    base = np.tile(row, (20, 1))
    worse = base.copy()
    worse[0, -1] += 1
    better = metric.higher_is_better
    change = float(metric.of(worse) - metric.of(base))
    result = stats.noninferior(base, worse, metric, 1.01 * change, higher_is_better=better, level=0.5)
    assert (result.shown, result.bound, result.change) == (True, change, change)
    assert not stats.noninferior(base, worse, metric, 0.99 * change, higher_is_better=better, level=0.5).shown
    assert not stats.noninferior(base, worse, metric, 1.01 * change, higher_is_better=better).shown
