"""How often the verdict is false: "shown" although the true drop equals the margin; at most 5% is the promise.

    python -m benchmarks.coverage                        constructed populations
    python -m benchmarks.coverage --statistics DIR       and real ones: files of benchmarks.pruning.promises

A population is the statistics of every example under a whole and a pruned model. Its true drop is the margin. Samples
are drawn from it with replacement, and the verdict asked for each. Power: how often "shown" is right, for a model that
differs from the whole one as often, but loses nothing (each example's two outcomes in random order), with the margin
that stands above the column. Beside it, the percentile bootstrap that this method replaced.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from headcount.pruning.cut_size import Budget
from headcount.stats import noninferior
from headcount.stats.intervals import resampled
from headcount.tasks import Metric
from headcount.tasks.metrics import CLASSIFICATION, LANGUAGE, TRANSLATION

METRICS = ("accuracy", "f1", "matthews", "bleu", "perplexity")
SIZES = (30, 100, 300, 1000, 2000)
MOST = 0.15  # of the whole model's score: real cuts that lose more are left out
RISES = ((0.05, 0.4), (0.02, 1.0), (0.01, 2.0), (0.005, 4.0))  # share of the texts, mean rise in nats per token
REAL = {"sst2": ("accuracy", "f1", "matthews"), "mrpc": ("accuracy", "f1"), "cola": ("matthews",)}


class Population(NamedTuple):
    """Statistics (N, S) of every example before and after a cut."""

    name: str
    metric: Metric
    before: np.ndarray
    after: np.ndarray

    @property
    def points(self) -> float:
        """The true drop."""
        whole = float(self.metric.of_sums(self.before.sum(0)))
        one = Budget.of(self.metric, 1, whole)
        return one.in_points(one.drop(float(self.metric.of_sums(self.after.sum(0)))))


def main() -> None:
    options = arguments()
    print(f"| population | drop, points | {' | '.join(f'n = {n:,}' for n in options.sizes)} |")
    print(f"|-|-|{'-|' * len(options.sizes)}")
    worst: dict[str, float] = {}
    for one in populations(options):
        cells = []
        for n in options.sizes:
            false, percentile, power = rates(one, n, options)
            worst[one.metric.name] = max(worst.get(one.metric.name, 0.0), false)
            cells.append(f"{false:.1%} ({percentile:.0%}), {power:.0%}")
        print(f"| {one.name}, {one.metric.name} | {one.points:.2f} | {' | '.join(cells)} |", flush=True)
    print("\nLargest rate of false verdicts: " + ", ".join(f"{name} {rate:.1%}" for name, rate in worst.items()))


def populations(options: argparse.Namespace) -> Iterator[Population]:
    """All of the metrics that are asked for."""
    files = [] if options.statistics is None else sorted(options.statistics.glob("*.npz"))
    for some in (constructed(), *map(real, files)):
        yield from (one for one in some if one.metric.name in options.metrics)


def constructed(size: int = 50_000) -> Iterator[Population]:
    """Right or wrong outcomes of two classes that flip at these rates, and losses that rise seldom, but by much.

    Rises are exponential with this mean; Pareto with tail index 2, whose variance is infinite; or log-normal.
    """
    rng = np.random.default_rng(0)
    for lost, won in ((0.02, 0.0), (0.03, 0.01), (0.1, 0.08)):
        true = (rng.random(size) < 0.65).astype(int)
        right = rng.random(size) < 0.85
        chance = rng.random(size)
        still = np.where(right, chance >= lost / 0.85, chance < won / 0.15)
        before, after = (_counted(true, np.where(one, true, 1 - true)) for one in (right, still))
        for name in ("accuracy", "f1", "matthews"):
            yield Population(f"{lost:.0%} lost, {won:.0%} won", CLASSIFICATION[name], before, after)
    tokens = rng.integers(5, 40, size).astype(float)
    loss = tokens * rng.gamma(6, 0.5, size)
    exponential = [(share, f"{nats:g} nats", rng.exponential(nats, size)) for share, nats in RISES]
    heavy = [(0.02, "Pareto, 2", rng.pareto(2, size)), (0.01, "log-normal, 1.2", rng.lognormal(0, 1.2, size))]
    for share, how, nats in (*exponential, *heavy):
        rise = tokens * np.where(rng.random(size) < share, nats, rng.normal(0, 0.01, size))
        before, after = (np.stack([tokens, tokens, one], axis=1) for one in (loss, loss + rise))
        yield Population(f"losses that rise in {share:.1%}, {how}", LANGUAGE["perplexity"], before, after)


def _counted(true: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """Statistics (N, 9) of a classification into two classes."""
    each, rows = np.arange(len(true)), np.zeros((len(true), 9))
    rows[:, 0], rows[:, 1] = 1, true == guess
    rows[each, 3 + true] = rows[each, 5 + guess] = 1
    rows[each, 7 + true] = true == guess
    return rows


def real(file: Path) -> Iterator[Population]:
    """The smallest and the largest cut of a path that lose something, at most `MOST` of the score."""
    paths = {float(share): statistics for share, statistics in np.load(file).items()}
    key, _, given = file.stem.partition("-")
    for name in (given,) if given else REAL.get(key, ("bleu",)):
        metric = {**CLASSIFICATION, **LANGUAGE, **TRANSLATION}[name]
        score = abs(float(metric.of_sums(paths[0.0].sum(0))))
        most = 100 * MOST if metric.relative else MOST * score / metric.points
        cuts = [
            Population(f"{key}, {share:.0%} of the heads", metric, paths[0.0], paths[share]) for share in sorted(paths)
        ]
        losing = [cut for cut in cuts if 0 < cut.points <= most]
        yield from losing if len(losing) < 2 else (losing[0], losing[-1])


def rates(one: Population, n: int, options: argparse.Namespace) -> tuple[float, float, float]:
    """Shares of trials: false verdicts, false verdicts of the percentile bootstrap, and right ones."""
    rng, metric = np.random.default_rng(options.seed), one.metric
    false = percentile = power = 0
    for _ in range(options.trials):
        rows = rng.integers(len(one.before), size=n)
        before, after = one.before[rows], one.after[rows]
        budget = Budget.of(metric, one.points, float(metric.of_sums(before.sum(0))))
        false += shows(before, after, metric, budget, options.resamples)
        percentile += _percentile_shows(before, after, budget, metric)
        swapped = rng.random(n)[:, None] < 0.5
        whole, equal = np.where(swapped, after, before), np.where(swapped, before, after)
        budget = Budget.of(metric, options.power_margin, float(metric.of_sums(whole.sum(0))))
        power += shows(whole, equal, metric, budget, options.resamples)
    return false / options.trials, percentile / options.trials, power / options.trials


def shows(before: np.ndarray, after: np.ndarray, metric: Metric, budget: Budget, resamples: int) -> bool:
    better = metric.higher_is_better
    return noninferior(before, after, metric, budget.allowed, higher_is_better=better, resamples=resamples).shown


def _percentile_shows(before: np.ndarray, after: np.ndarray, budget: Budget, metric: Metric) -> bool:
    scores = resampled(np.stack([before, after]), metric, 100, seed=1)
    drops = (scores[:, 0] - scores[:, 1]) * (1 if metric.higher_is_better else -1)
    return bool(np.quantile(drops, 0.95) < budget.allowed)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--statistics", type=Path, help="directory of benchmarks.pruning.promises")
    parser.add_argument("--metrics", type=lambda text: text.split(","), default=METRICS)
    parser.add_argument("--sizes", type=lambda text: [int(n) for n in text.split(",")], default=SIZES)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--resamples", type=int, default=2000)
    parser.add_argument("--power-margin", type=float, default=2.0, help="in points")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
