"""Decisions at any stopping time, against slow versions written from the definitions, and by simulation."""

import numpy as np
import pytest
from benchmarks.adaptive import error_rates, follow, outcomes

from headcount.stats import Deciding, foreseen, noninferior, planned_looks, sequential_bounds
from headcount.stats.sequential import BETS, STAKES, betting_bounds, log_capital
from headcount.tasks.metrics import CLASSIFICATION, LANGUAGE, TRANSLATION

ACCURACY = CLASSIFICATION["accuracy"]


def slow_capital(changes, mean):
    """Waudby-Smith and Ramdas (2024), one example and one bet after the other: K_t(m) = prod_i 1 + lambda (d_i - m)."""
    total = 0.0
    for share, stake in zip(BETS, STAKES, strict=True):
        capital = stake
        for change in changes:
            capital *= 1 + share / (1 + mean) * (change - mean)
        total += capital
    return total


@pytest.mark.parametrize(("lost", "won", "n"), [(0, 0, 60), (5, 1, 60), (3, 9, 80), (40, 0, 50)])
def test_betting_bounds_are_those_of_the_product_over_examples(lost, won, n):
    changes = [-1.0] * lost + [1.0] * won + [0.0] * (n - lost - won)
    np.random.default_rng(0).shuffle(changes)
    low, high = (float(end[0]) for end in betting_bounds(np.array([lost]), np.array([won]), n, tail=0.01))
    step = 1e-4
    assert slow_capital(changes, low - step) >= 100 > slow_capital(changes, low + step)
    mirrored = [-change for change in changes]
    assert slow_capital(mirrored, -(high + step)) >= 100 > slow_capital(mirrored, -(high - step))
    assert low < (won - lost) / n < high


def test_stakes_are_all_of_the_capital_and_no_bet_can_end_below_nothing():
    assert STAKES.sum() == pytest.approx(1)
    assert len(STAKES) == len(BETS)
    assert BETS.min() > 0
    assert BETS.max() <= 1


def test_a_confidence_sequence_holds_at_all_looks_together():
    """At most the stated share of sequences ever excludes the true change, even if one looks all the time."""
    rng, trials, n, tail = np.random.default_rng(0), 400, 400, 0.1
    changes = rng.choice([-1, 0, 1], p=[0.08, 0.88, 0.04], size=(trials, n))
    lost, won = (changes < 0).cumsum(1), (changes > 0).cumsum(1)
    excluded = np.zeros(trials, bool)
    for seen in range(2, n + 1, 2):
        low, _ = betting_bounds(lost[:1, seen - 1], won[:1, seen - 1], seen, tail)
        capital = log_capital(lost[:, seen - 1], won[:, seen - 1], seen, np.full(trials, -0.04))
        assert (low[0] > -0.04) == (capital[0] >= np.log(1 / tail))  # the bound excludes what the capital refutes
        excluded |= capital >= np.log(1 / tail)
    assert 0 < excluded.mean() < tail + 2 * (tail * (1 - tail) / trials) ** 0.5


@pytest.mark.parametrize(("metric", "n", "trials"), [("accuracy", 300, 60), ("bleu", 200, 20)])
def test_sweeps_with_a_false_decision_are_as_rare_as_stated(metric, n, trials):
    either, *_ = error_rates(metric, n, heads=4, trials=trials)
    assert either <= 0.05 + 2 * (0.05 * 0.95 / trials) ** 0.5


def test_heads_are_decided_and_need_fewer_examples_the_clearer_they_are():
    rng = np.random.default_rng(0)
    base = np.stack([np.ones(4000), rng.random(4000) < 0.9], axis=1)
    flipped = [rng.random(4000) < rate for rate in (0.0, 0.01, 0.1, 0.5)]
    masked = np.stack([np.stack([base[:, 0], np.where(some, 0, base[:, 1])], axis=1) for some in flipped])
    deciding = Deciding(ACCURACY, masks=4, examples=4000, margin=0.02)
    follow(deciding, base, masked)
    assert deciding.decisions.tolist() == ["within", "within", "missed", "missed"]
    assert deciding.examples[0] < deciding.examples[1]
    assert deciding.examples[3] < deciding.examples[2] < 1000
    assert (deciding.bounds.low <= deciding.change).all()
    assert (deciding.change <= deciding.bounds.high).all()


def test_the_last_look_finds_what_a_fixed_number_of_examples_shows():
    """A head that the full sweep would just name is not lost by having looked before."""
    base = np.stack([np.ones(200), np.ones(200)], axis=1)
    masked = base.copy()
    masked[np.random.default_rng(0).permutation(200)[:9], 1] = 0  # McNemar's p is 0.004
    found = sequential_bounds(base, masked[None], ACCURACY, error=0.05, last=True)
    before = sequential_bounds(base, masked[None], ACCURACY, error=0.05)
    assert found.p[0] == pytest.approx(2 * 2 / 2**9)
    assert before.p[0] > found.p[0]
    assert found.high[0] < before.high[0]


def test_a_rise_is_a_loss_where_lower_is_better():
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, 20, 600).astype(float)
    base = np.stack([tokens, tokens, tokens * rng.gamma(8, 0.25, 600)], axis=1)
    worse = base * [1, 1, 1.3]
    deciding = Deciding(LANGUAGE["perplexity"], masks=2, examples=600, margin=0.2)
    follow(deciding, base, np.stack([base, worse]))
    assert deciding.decisions.tolist() == ["within", "missed"]


def test_looks_grow_and_end_with_everything():
    for n in (1, 63, 64, 65, 872, 20_000):
        looks = planned_looks(n)
        assert looks[-1] == n
        assert looks == sorted(set(looks))
        assert len(looks) == 1 or looks[0] >= 64


@pytest.mark.parametrize("name", ["accuracy", "bleu"])
def test_what_is_foreseen_comes_true(name):
    """Over many cuts near and far from the budget, the test on all examples says what a part of them foretold."""
    from benchmarks.adaptive import sentences

    rng, told, wrong, n = np.random.default_rng(0), 0, 0, 400
    metric = ACCURACY if name == "accuracy" else TRANSLATION["bleu"]
    draw = outcomes if name == "accuracy" else sentences
    for _ in range(25):
        base, masked = draw(rng, n, np.array([bool(rng.integers(2))]))
        margin = float(rng.choice([0.005, 0.02, 0.05, 0.15])) * (100 if name == "bleu" else 1)
        for size in planned_looks(n)[:-1]:
            early = foreseen(base[:size], masked[0, :size], metric, margin, examples=n)
            if early is not None:
                told += 1
                wrong += early != noninferior(base, masked[0], metric, margin).shown
                break
    assert told >= 5
    assert wrong == 0
