"""The verdict on simulated timings: it says what they show, and no more."""

from __future__ import annotations

import numpy as np
import pytest

from headcount.bench import SpeedRow, verdict
from headcount.bench.comparison import rows_of
from headcount.bench.timing import median


def simulated(speedup: float, noise: float, rounds: int = 25, batch: int = 16, seed: int = 0, limit: float = 1.23):
    """A row from timings whose rounds share a drift, as machines have it, and differ by noise of their own."""
    rng = np.random.default_rng(seed)
    drift = np.exp(rng.normal(0, 0.3, rounds))
    seconds = np.stack([drift, drift / speedup]) * np.exp(rng.normal(0, noise, (2, rounds)))
    inputs = {"input_ids": np.zeros((batch, 128))}
    return rows_of(["original", "pruned"], seconds, inputs, {"original": round(1000 * limit), "pruned": 1000})[0]


@pytest.mark.parametrize("seed", range(5))
def test_no_difference(seed):
    assert verdict([simulated(1.0, 0.01, seed=seed)]) == "no gain at batch 16"


@pytest.mark.parametrize("seed", range(5))
def test_a_small_difference(seed):
    row = simulated(1.05, 0.005, seed=seed)
    assert row.speedup == pytest.approx(1.05, abs=0.01)
    assert verdict([row]) == f"faster by {row.speedup - 1:.0%} (limit 23%) at batch 16"
    assert verdict([simulated(1.01, 0.001, seed=seed)]) == "no gain at batch 16"  # certain, and too small to count


@pytest.mark.parametrize("seed", range(5))
def test_a_large_difference(seed):
    row = simulated(1.21, 0.003, seed=seed)
    assert verdict([row]) == "faster by 21% (limit 23%) at batch 16"
    assert row.low < 1.21 < row.high
    assert row.limit == 1.23
    assert verdict([simulated(0.8, 0.003, seed=seed)]) == "slower by 20% at batch 16"


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_called_noise(seed):
    said = verdict([simulated(1.0, 0.5, rounds=7, seed=seed)])
    assert said.startswith("too noisy to tell (")
    assert "faster" not in said


def test_drift_that_both_share_does_not_matter():
    assert median(np.full(9, 1.2)).low == pytest.approx(1.2)
    row = simulated(1.21, 0.0)
    assert (row.low, row.high) == (pytest.approx(1.21), pytest.approx(1.21))


def test_places_are_told_apart():
    rows = [simulated(1.21, 0.0, batch=16), simulated(1.0, 0.001, batch=1)]
    assert verdict(rows) == "faster by 21% (limit 23%) at batch 16; no gain at batch 1"
    assert verdict(rows[::-1]) == verdict(rows)
    rows = [simulated(1.2, 0.0, batch=batch) for batch in (1, 4, 16)]
    assert verdict(rows) == "faster by 20% (limit 23%) at batch 1, 4 and 16"
    two = [SpeedRow("pruned", 1, length, 1, 2, 2.0, 1.9, 2.1) for length in (8, 16)]
    assert verdict(two) == "2.00 times as fast at batch 1, length 8 and at batch 1, length 16"
    assert verdict([SpeedRow("original", 1, 8, 1.0)]) == ""
    mixed = [SpeedRow("pruned", 16, 8, 1, 2, 2.1, 2.0, 2.2, 2.5), SpeedRow("pruned", 1, 8, 1, 1, 1.3, 1.2, 1.4, 2.5)]
    assert verdict(mixed) == "2.10 times as fast (limit 2.50) at batch 16; 1.30 times as fast (limit 2.50) at batch 1"


def test_the_interval_covers_the_median():
    """Of 400 samples of 9, the 95% interval misses the true median about 20 times: it is 96.1% by the binomial."""
    rng = np.random.default_rng(0)
    intervals = [median(rng.lognormal(size=9)) for _ in range(400)]
    missed = sum(not interval.low <= 1 <= interval.high for interval in intervals)
    assert 4 <= missed <= 36


def test_few_values_give_all_of_them():
    assert median([3.0, 1.0, 2.0]) == median([1.0, 2.0, 3.0])
    assert (median([1.0, 2.0, 3.0]).low, median([1.0, 2.0, 3.0]).high) == (1.0, 3.0)
