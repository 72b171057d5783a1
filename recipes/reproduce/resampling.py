"""What the single sentences say beyond a run's table: how reliable the effects of heads are, how sure a correlation of
them is, and the p of compare-mt, M19's tool.

A finished ablation keeps the statistics of every sentence under every mask, so all of this is arithmetic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load

from headcount.tasks import Metric
from headcount.tasks.metrics import CLASSIFICATION, LANGUAGE, TRANSLATION

RESAMPLES, SPLITS, SEED = 1000, 100, 0
CHECKSUM = 32  # bytes in front of a shard
HALF = 0.5  # of the sentences: how many compare-mt draws
LOSSES = ("here", "other", "r_interval", "reliability")  # what `losses` has


def resample(runs: Mapping[str, dict[str, Any]], translates: bool) -> None:
    """Add to the ablations of one experiment, in and out of domain, what their sentences say, if they are still there:
    `reliability`, a translator's `compare_mt_p` by head, and out of domain `r_interval`; of a classifier also `losses`,
    the heads' effects on the loss, which is less noisy than the share of right answers."""
    found = {part: effects(runs[part], translates) for part in ("ablate", "other") if part in runs}
    sides = {part: one for part, one in found.items() if one is not None}
    for part, one in sides.items():
        runs[part]["reliability"] = reliability(one)
        if translates:
            runs[part]["compare_mt_p"] = compare_mt_p(one).tolist()
    if len(sides) == 2:
        both = sides["ablate"], sides["other"]
        runs["other"]["r_interval"] = r_interval(*both)
        if both[0].metric in CLASSIFICATION.values():
            by_loss = [one._replace(metric=CLASSIFICATION["loss"]) for one in both]
            effects_on_loss = [one.changes(np.ones((1, len(one.base))))[0].tolist() for one in by_loss]
            found_there = (*effects_on_loss, r_interval(*by_loss), [reliability(one) for one in by_loss])
            runs["other"]["losses"] = dict(zip(LOSSES, found_there, strict=True))


class Effects(NamedTuple):
    """Statistics of every sentence with each head off, (heads, N, S), and of the whole model, (N, S)."""

    base: np.ndarray
    masked: np.ndarray
    metric: Metric

    def changes(self, weights: np.ndarray) -> np.ndarray:
        """The change with each head off, (R, heads), where sentences count as often as weights (R, N) say."""
        one = self.metric.of_counts(self.base, weights)  # (R,)
        return np.stack([self.metric.of_counts(rows, weights) for rows in self.masked], axis=1) - one[:, None]


def effects(run: Mapping[str, Any], translates: bool) -> Effects | None:
    """Of a finished ablation of every head; None if its directory has no shards of sentences any more."""
    found = []
    directory = run.get("directory")
    for file in sorted(Path(directory, "outcomes").glob("*.shard")) if directory else []:
        content = file.read_bytes()
        if hashlib.sha256(content[CHECKSUM:]).digest() == content[:CHECKSUM]:
            values = load(content[CHECKSUM:]).get("values")  # (examples, masks, S), the whole model first
            if values is not None and values.shape[1] == len(run["heads"]) + 1:
                found.append(values)
    if sum(map(len, found)) != run["n"]:
        return None
    values = np.concatenate(found).swapaxes(0, 1).astype(float)
    metrics = TRANSLATION if translates else {**LANGUAGE, **CLASSIFICATION}
    return Effects(values[0], values[1:], metrics[run["metric"]])


def reliability(one: Effects) -> float:
    """Split-half reliability of the heads' effects: Pearson r between two halves of the sentences, the mean over
    random splits, stepped up to all of them by the formula of Spearman and Brown, which is for r above 0."""
    rng, n = np.random.default_rng(SEED), len(one.base)
    firsts = np.stack([rng.permutation(n) < n // 2 for _ in range(SPLITS)]).astype(float)
    r = float(np.mean(_correlated(one.changes(firsts), one.changes(1 - firsts))))
    return 2 * r / (1 + r) if r > 0 else r


def r_interval(here: Effects, other: Effects) -> tuple[float, float]:
    """The 95% interval of Pearson's r over heads, by a bootstrap over the sentences of both data sets."""
    rng = np.random.default_rng(SEED)
    sides = [one.changes(_drawn(rng, len(one.base), len(one.base))) for one in (here, other)]
    low, high = np.nanquantile(_correlated(*sides), (0.025, 0.975))
    return float(low), float(high)


def compare_mt_p(one: Effects) -> np.ndarray:
    """The one-sided p of each head's observed change, (heads,), as compare-mt has it: the share of samples in which the
    system that is better on all sentences does not win. A sample is half of the sentences, drawn with replacement."""
    n = len(one.base)
    changes = one.changes(_drawn(np.random.default_rng(SEED), n, max(1, int(n * HALF))))  # (R, heads)
    observed = one.changes(np.ones((1, n)))[0]
    return np.asarray((changes * np.sign(observed) <= 0).mean(0))


def _drawn(rng: np.random.Generator, n: int, size: int) -> np.ndarray:
    """(R, n) how often each of n sentences is drawn."""
    return rng.multinomial(size, np.full(n, 1 / n), size=RESAMPLES).astype(float)


def _correlated(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Pearson r of each row, (R,); nan where one side is constant."""
    left, right = (side - side.mean(1, keepdims=True) for side in (left, right))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((left * right).sum(1) / np.sqrt((left**2).sum(1) * (right**2).sum(1)))
