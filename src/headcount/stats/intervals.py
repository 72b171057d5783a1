"""Intervals of a score and of a change, for every metric: the one place that decides how.

A mean of 0/1 outcomes (accuracy, exact match) has the exact interval of a share, and Tango's of a paired change: a
bootstrap of such outcomes has no width where nothing flips, however few the examples. Every other metric has a
bootstrap whose sample holds one more example than was seen: an imagined one, which pulls the score as far to the side
of the bound as an example can. That is Gaffke's bound of a mean (2005), here for any metric; for 0/1 outcomes it is
Clopper and Pearson's. If all n examples are the same, the imagined one has a weight of up to 3 / n in 95% of the
resamples, so that the rule of three holds for every metric: no number of identical examples shows more than that.

The imagined example (`Metric.extremes`): for F1 and Matthews, one that the one model gets right and the other wrong, of
the class that does most; for BLEU and chrF, a text of mean length with every n-gram right, or none. A loss has no worst
value. For perplexity, a text of mean length whose loss rises by 5 nats per token is imagined, and the most influential
example that was seen once more. For metrics that say nothing of extremes, the latter is imagined twice, since worse
ones exist, and the bound leaves room for twice the score, times the rule of three. No bound holds for every
distribution of losses (Bahadur and Savage 1956); where fewer examples than that carry more, the verdict is false more
often (benchmarks/coverage.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import stats as scipy_stats

RESAMPLES = 2000
HALVINGS = 60  # of the range of a bound, until floating-point numbers end
ROOM = 2  # times the score: what an unseen example may add to a metric without a worst value
UNSEEN = 3  # imagined examples, by the rule of three, when the kind that does most is chosen
AnyMetric = Any  # a function of summed statistics, or an object with `of` and `of_counts`, as `tasks.Metric` has them
MEMORY = 256 * 2**20  # bytes that a bootstrap uses at a time
SEED = 12345  # sacrebleu's, so that the resamples are the same


def interval(
    statistics: np.ndarray,
    metric: AnyMetric,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> tuple[float, float]:
    """The interval of one score.

    >>> right = np.array([1.0] * 80 + [0.0] * 20)
    >>> low, high = interval(np.stack([np.ones(100), right], axis=1), lambda s: s[..., 1] / s[..., 0])
    >>> 0.70 < low < 0.8 < high < 0.90
    True

    statistics: (N, S).
    """
    statistics, tail = np.asarray(statistics, float), (1 - level) / 2
    if are_outcomes(statistics, metric):
        return clopper_pearson(int(statistics[:, 1].sum()), len(statistics), level)
    observed = float(score(statistics, metric))
    lowest, highest = (_imagined(None, statistics, metric, side)[1] for side in (0, 1))
    ends = []
    for imagined, share in ((lowest, tail), (highest, 1 - tail)):
        rows = np.concatenate([statistics, imagined])[None]
        parts = random_weights(metric, rows.shape[1], resamples, seed)
        ends.append(np.quantile(np.concatenate([weighted_scores(rows, metric, part)[:, 0] for part in parts]), share))
    room = room_for_unseen(len(statistics), metric, tail, abs(observed))
    least, greatest = getattr(metric, "bounds", (-np.inf, np.inf))
    return float(max(least, min(ends[0], observed - room))), float(min(greatest, max(ends[1], observed + room)))


def change_bounds(
    base: np.ndarray,
    masked: np.ndarray,
    metric: AnyMetric,
    tail: float = 0.025,
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> tuple[np.ndarray, np.ndarray]:
    """The lower and the upper bound of each mask's change, (M,) each; one bound misses in about `tail` of cases.

    >>> right = np.array([1.0] * 80 + [0.0] * 20)
    >>> base = np.stack([np.ones(100), right], axis=1)
    >>> low, high = change_bounds(base, base[None], lambda s: s[..., 1] / s[..., 0])  # nothing changed
    >>> bool(low[0] < -0.02), bool(high[0] > 0.02)
    (True, True)

    base: (N, S). masked: (M, N, S). Where points are shares of the whole model's score (perplexity, loss), the change
    is resampled as such a share, too.
    """
    base, masked = np.asarray(base, float), np.asarray(masked, float)
    if are_outcomes(base, metric) and are_outcomes(masked, metric):
        before, after = base[:, 1] > 0, masked[..., 1] > 0
        return paired_bounds((before & ~after).sum(-1), (~before & after).sum(-1), len(base), tail)
    low, high = np.empty(len(masked)), np.empty(len(masked))
    whole, scores = float(score(base, metric)), score(masked, metric)
    relative = getattr(metric, "relative", False) and whole != 0
    for masks in chunks(np.arange(len(masked)), 8 * (8 * resamples + 4 * base.size)):
        some = masked[masks]
        for side, end, share in ((0, low, tail), (1, high, 1 - tail)):
            changes = resampled_changes(base, some, metric, side, resamples, seed, relative)
            end[masks] = np.quantile(changes, share, axis=0) * (abs(whole) if relative else 1.0)
    room = room_for_unseen(len(base), metric, tail, np.maximum(abs(whole), np.abs(scores)))
    return np.minimum(low, scores - whole - room), np.maximum(high, scores - whole + room)


def are_outcomes(statistics: np.ndarray, metric: AnyMetric) -> bool:
    """Whether the metric is the mean of one 0/1 outcome per example, which is then the second statistic."""
    if not getattr(metric, "proportion", False):
        return False
    return bool((statistics[..., 0] == 1).all() and np.isin(statistics[..., 1], (0, 1)).all())


def resampled_changes(
    base: np.ndarray,
    masked: np.ndarray,
    metric: AnyMetric,
    side: int,
    resamples: int,
    seed: int,
    relative: Any,
    blocks: int | None = None,
) -> np.ndarray:
    """(R, M) changes on resamples that hold imagined examples, which lower (side 0) or raise (1) the change.

    blocks: for a metric of sums and examples in random order: sum them to this many rows, and resample those.
    """
    pairs = [_imagined(base, one, metric, side) for one in masked]
    same = all((pair[0] == pairs[0][0]).all() for pair in pairs)  # then the base is resampled once for all masks
    parts = []
    befores = [pairs[0][0]] if same else [pair[0] for pair in pairs]
    if blocks is not None:
        base, masked = in_blocks(base, blocks), in_blocks(masked, blocks)
    systems = [np.concatenate([base, rows]) for rows in befores]
    systems += [np.concatenate([one, pair[1]]) for one, pair in zip(masked, pairs, strict=True)]
    for weights in random_weights(metric, len(systems[0]), resamples, seed):
        scores = weighted_scores(np.stack(systems), metric, weights)
        before, after = scores[:, : len(befores)], scores[:, len(befores) :]
        parts.append((after - before) / np.abs(before) if relative else after - before)
    return np.concatenate(parts)


def in_blocks(statistics: np.ndarray, blocks: int) -> np.ndarray:
    """Examples (..., N, S) in random order, summed to at most this many rows, which a metric of sums cannot tell apart.

    >>> in_blocks(np.arange(5.0)[:, None], 2).tolist()
    [[1.0], [9.0]]
    """
    n = statistics.shape[-2]
    return statistics if n <= blocks else np.add.reduceat(statistics, np.arange(blocks) * n // blocks, axis=-2)


def _imagined(
    base: np.ndarray | None, masked: np.ndarray, metric: AnyMetric, side: int
) -> tuple[np.ndarray, np.ndarray]:
    """Statistics (C, S) of imagined examples under base and masked model that lower the change most, or raise it.

    base: (N, S); None for the score of one model, which the examples then lower or raise.
    """
    known = getattr(metric, "extremes", None) is not None
    befores, afters = [], []
    if known:
        kinds = np.asarray(metric.extremes(masked if base is None else base), float)  # (K, 2, S): raises, lowers
        ups, downs = kinds[:, 0], kinds[:, 1]
        before, after = (downs, ups) if side else (ups, downs)
        effect = metric.of_sums(masked.sum(0) + UNSEEN * after)  # (K,)
        if base is not None:
            effect = effect - metric.of_sums(base.sum(0) + UNSEEN * before)
        place = int(effect.argmax() if side else effect.argmin())
        befores.append(before[place])
        afters.append(after[place])
    if not known or getattr(metric, "unbounded", False):  # the most influential example that was seen
        with_each = score_with_each(masked, metric)
        if base is not None:
            with_each = with_each - score_with_each(base, metric)
        place = int(with_each.argmax() if side else with_each.argmin())
        copies = 1 if known else 2  # it stands for worse ones that were not seen
        befores += [(masked if base is None else base)[place]] * copies
        afters += [masked[place]] * copies
    return np.array(befores), np.array(afters)


def room_for_unseen(n: int, metric: AnyMetric, tail: float, size: Any) -> Any:
    """What a bound leaves at least for kinds of examples that were not seen, where no extremes are known."""
    return ROOM * unseen_share(n, tail) * size if getattr(metric, "extremes", None) is None else 0.0


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


def bootstrap_p(
    base: np.ndarray, masked: np.ndarray, metric: AnyMetric, resamples: int, seed: int = SEED
) -> tuple[np.ndarray, np.ndarray]:
    """The two-sided p of each mask's change, and sacrebleu's; both (M,), and 1 for a mask that changes nothing.

    base: (N, S). masked: (M, N, S).
    """
    p, p_sacrebleu = np.ones(len(masked)), np.ones(len(masked))
    observed = score(masked, metric) - score(base, metric)  # (M,)
    changed = np.flatnonzero((masked != base).any((1, 2)))
    for masks in chunks(changed, 8 * (4 * resamples + 2 * base.size)):
        changes = resampled(np.concatenate([base[None], masked[masks]]), metric, resamples, seed)
        changes = changes[:, 1:] - changes[:, :1]  # (R, masks)
        size = np.abs(observed[masks])
        # Centred, the resampled changes are what chance alone does. The tolerance keeps ties ties.
        as_large = np.abs(changes - changes.mean(0)) >= size * (1 - 1e-9)
        p[masks] = (as_large.sum(0) + 1) / (resamples + 1)
        absolute = np.abs(changes)
        p_sacrebleu[masks] = ((absolute - absolute.mean(0) > size).sum(0) + 1) / (resamples + 1)
    return p, p_sacrebleu


def resamples_needed(tests: int, alpha: float = 0.05) -> int:
    """How many resamples a Holm-corrected p needs: ten can exceed, and the smallest of `tests` p is still below alpha.

    >>> resamples_needed(12), resamples_needed(144, alpha=0.01)
    (2400, 144000)
    """
    return max(1000, 10 * math.ceil(round(tests / alpha, 6)))


def resampled(statistics: np.ndarray, metric: AnyMetric, resamples: int, seed: int) -> np.ndarray:
    """Scores (R, K) of K systems (K, N, S) on the same bootstrap resamples of the N examples.

    A resample is a row of counts, so all sums of all systems are one matrix product.
    """
    K, N, S = statistics.shape
    scores = np.empty((resamples, K))
    rng = np.random.default_rng(seed)
    for rows in chunks(np.arange(resamples), 8 * (5 * N + 6 * K * S)):
        # Drawn as in sacrebleu, so that the same seed gives the same resamples.
        drawn = rng.choice(N, size=(len(rows), N), replace=True)
        offsets = np.arange(len(rows))[:, None] * N
        counts = np.bincount((drawn + offsets).ravel(), minlength=len(rows) * N).reshape(len(rows), N)
        scores[rows] = weighted_scores(statistics, metric, counts.astype(float))
    return scores


def weighted_scores(statistics: np.ndarray, metric: AnyMetric, weights: np.ndarray) -> np.ndarray:
    """Scores (R, K) of K systems (K, N, S), each example counted as often as weights (R, N) say."""
    K, N, S = statistics.shape
    if _is_of_rows(metric):
        return np.stack([metric.of_counts(system, weights) for system in statistics], axis=1)
    columns = statistics.transpose(1, 0, 2).reshape(N, K * S)
    return np.asarray(_of_sums(metric)((weights @ columns).reshape(len(weights), K, S)))


def random_weights(metric: AnyMetric, examples: int, resamples: int, seed: int = SEED) -> Iterator[np.ndarray]:
    """Weights of a Bayesian bootstrap (Rubin 1981), in parts (r, N) that fit into memory.

    They vary continuously, so that bounds do not jump from one whole example to the next. A metric that is a function
    of rows, not of sums, gets counts of whole examples.
    """
    rng = np.random.default_rng(seed)
    for rows in chunks(np.arange(resamples), 8 * 4 * examples):
        if _is_of_rows(metric):
            yield rng.multinomial(examples, np.full(examples, 1 / examples), size=len(rows)).astype(float)
        else:
            yield rng.standard_exponential((len(rows), examples))


def score(statistics: np.ndarray, metric: AnyMetric) -> np.ndarray:
    """The metric of all examples: (..., N, S) to (...)"""
    return np.asarray(metric.of(statistics) if hasattr(metric, "of") else metric(statistics.sum(-2)))


def score_with_each(statistics: np.ndarray, metric: AnyMetric) -> np.ndarray:
    """The metric with each example counted once more, in turn: (N, S) to (N,)"""
    if _is_of_rows(metric):
        return np.asarray(metric.of_counts(statistics, 1.0 + np.eye(len(statistics))))
    return np.asarray(_of_sums(metric)(statistics.sum(0) + statistics))


def chunks(items: np.ndarray, bytes_each: int) -> Iterator[np.ndarray]:
    """Runs of items that together stay within the memory budget."""
    size = max(1, MEMORY // bytes_each)
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _is_of_rows(metric: AnyMetric) -> bool:
    return getattr(metric, "of_rows", None) is not None


def _of_sums(metric: AnyMetric) -> Any:
    return getattr(metric, "of_sums", metric)
