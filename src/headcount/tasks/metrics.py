"""Every metric as a function of statistics: of their sums, or, where that is not enough, of all of their rows.

A metric takes sums (..., S) of any leading dimensions and returns (...). The sums, by task:
- classification and choices: [examples, right, loss] and, for metrics that need them, three numbers per class:
  [true_0 .. true_C-1, predicted_0 .. predicted_C-1, both_0 .. both_C-1], whether the label is among the best five, or
  by how much its score is ahead of the best other;
- tokens and tags: [tokens, right, negative log likelihood], for entities [.., .., .., true, predicted, both];
- answers: [questions, exact matches, F1, loss]; exact match of texts: [examples, right];
- regression: [examples, x, y, x², y², xy, squared error], and cosines of pairs likewise;
- BLEU and chrF: in sacrebleu's own order; ROUGE: [examples, ROUGE-1, ROUGE-2, ROUGE-L];
- error rates of speech: [words or characters of the reference, errors].
A metric of rows takes rows (N, S) and counts (R, N), how often each row counts, and returns (R,).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from headcount.errors import BadData, unknown
from headcount.tasks.statistics import (
    all_or_nothing,
    characters_all_or_none,
    entities_all_or_none,
    furthest_ahead_or_behind,
    losses_far_off,
    ngrams_all_or_none,
    one_of_each_class,
    per_class,
    right_or_wrong,
)


@dataclass(frozen=True)
class Metric:
    """A score computed from the statistics of all examples: from their sum, or from their rows.

    >>> accuracy = Metric("accuracy", lambda sums: sums[..., 1] / sums[..., 0], points=0.01)
    >>> float(accuracy.of(np.array([[1.0, 1.0], [1.0, 0.0]])))
    0.5
    >>> largest = Metric("largest", of_rows=lambda rows, counts: np.where(counts > 0, rows[:, 0], -np.inf).max(1))
    >>> largest.of_counts(np.array([[3.0], [7.0]]), np.array([[1, 1], [2, 0]])).tolist()
    [7.0, 3.0]

    of_sums: (..., S) summed statistics -> (...) metric, for any leading dimensions at once.
    of_rows: for a metric that is not a function of sums: (N, S) statistics and (R, N) how often each example counts
        -> (R,) metric. A bootstrap resample is such a row of counts.
    points: the size of one point: 0.01 for accuracy, 1 for BLEU.
    relative: points are shares of the whole model's value (perplexity, loss): 0.01 is one percent of it.
    proportion: the first two statistics are how many and how many of them are right. Where that is one outcome per
        example, 0 or 1, intervals and tests are exact ones for shares.
    extremes: for intervals of any other metric: from statistics (N, S) to imagined examples (K, 2, S) of K kinds, each
        as it raises the score most, and lowers it most. Without it, examples that were seen take their place.
    unbounded: examples can lie beyond these extremes, so that the most influential one seen is imagined, too.
    bounds: the least and the greatest value that the metric can have; intervals end there.
    signature: how exactly the metric was computed, for example sacrebleu's signature.
    """

    name: str
    of_sums: Callable[[np.ndarray], np.ndarray] | None = None
    higher_is_better: bool = True
    points: float = 1.0
    relative: bool = False
    signature: str = ""
    of_rows: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    proportion: bool = False
    extremes: Callable[[np.ndarray], np.ndarray] | None = None
    unbounded: bool = False
    bounds: tuple[float, float] = (-math.inf, math.inf)

    def __post_init__(self) -> None:
        if (self.of_sums is None) == (self.of_rows is None):
            raise ValueError(f"the metric {self.name} must be a function of sums or of rows, not of both or neither")

    def of(self, statistics: np.ndarray) -> np.ndarray:
        """The metric of all examples: (..., N, S) to (...)"""
        if self.of_sums is not None:
            return np.asarray(self.of_sums(statistics.sum(-2)))
        flat = statistics.reshape(-1, *statistics.shape[-2:])
        once = np.ones((1, statistics.shape[-2]))
        return np.array([self.of_counts(rows, once)[0] for rows in flat]).reshape(statistics.shape[:-2])

    def of_counts(self, statistics: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """The metric where each example counts as often as a row says: (N, S) and (R, N) to (R,)"""
        if self.of_rows is not None:
            return np.asarray(self.of_rows(statistics, counts))
        assert self.of_sums is not None
        return np.asarray(self.of_sums(counts @ statistics))

    def without_each(self, statistics: np.ndarray) -> np.ndarray:
        """The metric with each example left out in turn: (M, N, S) to (M, N)"""
        if self.of_sums is not None:
            return np.asarray(self.of_sums(statistics.sum(1, keepdims=True) - statistics))
        others = 1.0 - np.eye(statistics.shape[1])
        return np.stack([self.of_counts(rows, others) for rows in statistics])

    def written(self, value: float, sign: bool = False) -> str:
        """A score, or a change of it with its sign, as people write it: 0.8796 accuracy, 51.02 BLEU.

        >>> Metric("bleu", lambda sums: sums[..., 0]).written(1.5, sign=True)
        '+1.50'
        """
        return f"{value:{'+' if sign else ''}.{4 if self.points < 1 or self.relative else 2}f}"

    def facts(self) -> dict[str, Any]:
        """What every result says about its metric, so that a reader knows which direction is better.

        >>> Metric("loss", lambda sums: sums[..., 0], higher_is_better=False, relative=True).facts()
        {'metric': 'loss', 'higher_is_better': False, 'points': 1.0, 'relative': True}
        """
        return {
            "metric": self.name,
            "higher_is_better": self.higher_is_better,
            "points": self.points,
            "relative": self.relative,
        }


def accuracy(sums: np.ndarray) -> np.ndarray:
    """The share of examples (or tokens) that are right.

    >>> float(accuracy(np.array([4.0, 3.0, 0.9])))
    0.75
    """
    return _ratio(sums[..., 1], sums[..., 0])


def loss(sums: np.ndarray) -> np.ndarray:
    """The mean loss per example, or per token for token sums.

    >>> float(loss(np.array([4.0, 3.0, 0.8])))
    0.2
    """
    return _ratio(sums[..., 2], sums[..., 0])


def perplexity(sums: np.ndarray) -> np.ndarray:
    """e to the power of the mean negative log likelihood per token.

    >>> float(perplexity(np.array([4.0, 3.0, 0.0])))
    1.0
    """
    return np.exp(loss(sums))


def f1(sums: np.ndarray) -> np.ndarray:
    """F1 of class 1, the harmonic mean of its precision and recall; 0 where it never occurs.

    >>> float(f1(np.array([4.0, 3.0, 0.9, 2.0, 2.0, 1.0, 3.0, 1.0, 2.0])))  # 2 true, 3 predicted, 2 both
    0.8
    """
    return _f1_per_class(sums)[..., 1]


def f1_macro(sums: np.ndarray) -> np.ndarray:
    """The mean F1 over the classes that occur among labels or predictions.

    >>> float(f1_macro(np.array([4.0, 4.0, 0.9, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0])))
    1.0
    """
    true, predicted, _ = per_class(sums)
    return _ratio(_f1_per_class(sums).sum(-1), ((true + predicted) > 0).sum(-1))


def matthews(sums: np.ndarray) -> np.ndarray:
    """Matthews correlation for any number of classes (Gorodkin 2004); 0 if labels or predictions are constant.

    >>> float(matthews(np.array([4.0, 4.0, 0.9, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0])))
    1.0
    """
    true, predicted, _ = per_class(sums)
    n, right = sums[..., 0], sums[..., 1]
    covariance = right * n - (true * predicted).sum(-1)
    spread = (n**2 - (predicted**2).sum(-1)) * (n**2 - (true**2).sum(-1))
    return _ratio(covariance, np.sqrt(spread))


def bleu(sums: np.ndarray) -> np.ndarray:
    """Corpus BLEU (4-grams, exponential smoothing) as `sacrebleu.corpus_bleu` computes it.

    >>> float(bleu(np.array([5.0, 5, 5, 4, 3, 2, 5, 4, 3, 2])).round(6))  # lengths, 4 x correct, 4 x total
    100.0
    """
    produced, reference = sums[..., 0], sums[..., 1]
    brevity = np.where(produced < reference, np.exp(1 - _ratio(reference, produced, empty=np.inf)), 1.0)
    smooth, logs, alive = np.ones_like(produced), np.zeros_like(produced), np.full(produced.shape, True)
    for order in range(4):
        correct, total = sums[..., 2 + order], sums[..., 6 + order]
        alive = alive & (total > 0)  # from the first order without n-grams, all precisions are 0
        smooth = np.where(alive & (correct == 0), smooth * 2, smooth)
        numerator = np.where(correct == 0, 100.0, 100.0 * correct)
        denominator = np.where(correct == 0, smooth * total, total)
        precision = np.where(alive, _ratio(numerator, denominator), 0.0)
        # sacrebleu takes -9999999999 as the logarithm of 0; its exponential is 0
        logs = logs + np.log(precision, where=precision > 0, out=np.full_like(precision, -9999999999.0))
    return np.where(sums[..., 2:6].any(-1), brevity * np.exp(logs / 4), 0.0)


def chrf(sums: np.ndarray) -> np.ndarray:
    """Corpus chrF (6-grams, beta 2) as `sacrebleu.corpus_chrf` computes it.

    >>> float(chrf(np.array([9.0, 9, 9, 8, 8, 8, 7, 7, 7, 6, 6, 6, 5, 5, 5, 4, 4, 4])))
    100.0
    """
    precision, recall, orders = (np.zeros(sums.shape[:-1]) for _ in range(3))
    for order in range(6):
        produced, reference, matched = (sums[..., 3 * order + k] for k in range(3))
        counted = (produced > 0) & (reference > 0)
        precision = precision + np.where(counted, _ratio(matched, produced), 0.0)
        recall = recall + np.where(counted, _ratio(matched, reference), 0.0)
        orders = orders + counted
    precision, recall = _ratio(precision, orders), _ratio(recall, orders)
    return 100 * _ratio(5 * precision * recall, 4 * precision + recall)


def entity_f1(sums: np.ndarray) -> np.ndarray:
    """F1 of whole entities, as seqeval computes it: [.., .., .., true, predicted, both].

    >>> float(entity_f1(np.array([9.0, 9, 9, 2, 3, 2])))
    0.8
    """
    return _ratio(2 * sums[..., 5], sums[..., 3] + sums[..., 4])


def pearson(sums: np.ndarray) -> np.ndarray:
    """Pearson correlation from [n, x, y, x², y², xy]; 0 if one side is constant.

    >>> float(pearson(np.array([3.0, 6, 12, 14, 56, 28])).round(12))  # of 1, 2, 3 and 2, 4, 6
    1.0
    """
    n, x, y, xx, yy, xy = np.moveaxis(sums[..., :6], -1, 0)
    spread = (n * xx - x * x) * (n * yy - y * y)
    return _ratio(n * xy - x * y, np.sqrt(np.maximum(spread, 0.0)))


def spearman(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation of the first two columns, ties with their mean rank: (N, 2), (R, N) to (R,)

    >>> spearman(np.array([[1.0, 5], [2, 6], [3, 9], [4, 9]]), np.array([[1, 1, 1, 1], [2, 1, 1, 0]])).round(4).tolist()
    [0.9487, 1.0]
    """
    x, y = (_ranks(rows[:, column], counts) for column in (0, 1))
    n = counts.sum(1, keepdims=True)
    x, y = (ranks - (counts * ranks).sum(1, keepdims=True) / n for ranks in (x, y))
    covariance = (counts * x * y).sum(1)
    return _ratio(covariance, np.sqrt((counts * x * x).sum(1) * (counts * y * y).sum(1)))


def _ranks(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The rank of each value among values that occur this often: (N,), (R, N) to (R, N)"""
    _, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.flatnonzero(np.diff(place[order], prepend=-1))
    number = np.add.reduceat(counts[:, order].astype(float), starts, axis=1)  # (R, distinct values)
    before = np.cumsum(number, axis=1) - number
    return (before + (number + 1) / 2)[:, place]


def recall_at(k: int, rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The share of queries whose own document is among the k nearest of all documents: (N, 2 * d), (R, N) to (R,)

    >>> rows = np.array([[1.0, 0, 1, 0], [0, 1, 1, 0.1]])  # two queries, both nearest to the first's document
    >>> recall_at(1, rows, np.array([[1, 1], [0, 2]])).tolist()
    [1.0, 1.0]

    rows: the unit vectors of a query and of its document, whose copies do not compete with it.
    """
    queries, documents = np.split(rows, 2, axis=1)
    found = np.empty(len(rows))
    for first in range(0, len(rows), 1024):
        scores = queries[first : first + 1024] @ documents.T  # (queries, N)
        own = np.einsum("nd,nd->n", queries[first : first + 1024], documents[first : first + 1024])
        found[first : first + 1024] = (scores > own[:, None] + 1e-6).sum(1) < k
    return counts @ found / counts.sum(1)


def _mean(column: int) -> Callable[[np.ndarray], np.ndarray]:
    """The mean of one statistic over the examples, of which there are as many as the first statistic says."""
    return lambda sums: _ratio(sums[..., column], sums[..., 0])


POSITIVE = (0.0, math.inf)
ACCURACY = Metric("accuracy", accuracy, points=0.01, proportion=True, extremes=right_or_wrong)
CLASSIFICATION = {
    "accuracy": ACCURACY,
    "f1": Metric("f1", f1, points=0.01, extremes=one_of_each_class),
    "f1_macro": Metric("f1_macro", f1_macro, points=0.01, extremes=one_of_each_class),
    "matthews": Metric("matthews", matthews, points=0.01, extremes=one_of_each_class),
    "loss": Metric("loss", loss, higher_is_better=False, points=0.01, relative=True, bounds=POSITIVE),
    "logit_difference": Metric("logit_difference", _mean(3), points=0.01, extremes=furthest_ahead_or_behind),
}
CHOICE = {name: CLASSIFICATION[name] for name in ("accuracy", "loss", "logit_difference")}
IMAGES = {
    **CHOICE,
    "top5": Metric("top5", _mean(3), points=0.01, extremes=all_or_nothing),
    **{name: CLASSIFICATION[name] for name in ("f1", "f1_macro", "matthews")},
}
TAGS = {
    "f1": Metric("f1", entity_f1, points=0.01, extremes=entities_all_or_none),
    **{name: CLASSIFICATION[name] for name in ("accuracy", "loss")},
}
ANSWERS = {
    "f1": Metric("f1", _mean(2), points=0.01, extremes=all_or_nothing),
    "exact_match": Metric("exact_match", accuracy, points=0.01, proportion=True, extremes=right_or_wrong),
    "loss": Metric("loss", _mean(3), higher_is_better=False, points=0.01, relative=True, bounds=POSITIVE),
}
REGRESSION = {
    "pearson": Metric("pearson", pearson, points=0.01, bounds=(-1.0, 1.0)),
    "spearman": Metric("spearman", points=0.01, of_rows=spearman, bounds=(-1.0, 1.0)),
    "mse": Metric("mse", _mean(6), higher_is_better=False, points=0.01, relative=True, bounds=POSITIVE),
}
EMBEDDING = {
    "spearman": REGRESSION["spearman"],
    "pearson": REGRESSION["pearson"],
    **{
        f"recall@{k}": Metric(f"recall@{k}", points=0.01, of_rows=partial(recall_at, k), bounds=(0.0, 1.0))
        for k in (1, 5, 10)
    },
}
PERPLEXITY = Metric(
    "perplexity",
    perplexity,
    False,
    points=0.01,
    relative=True,
    extremes=losses_far_off,
    unbounded=True,
    bounds=(1.0, math.inf),
)
LANGUAGE = {
    "perplexity": PERPLEXITY,
    "loss": CLASSIFICATION["loss"],
    "accuracy": CLASSIFICATION["accuracy"],
}
TRANSLATION = {
    "bleu": Metric("bleu", bleu, extremes=ngrams_all_or_none),
    "chrf": Metric("chrf", chrf, extremes=characters_all_or_none),
    "rouge1": Metric("rouge1", _mean(1), points=0.01, extremes=all_or_nothing),
    "rouge2": Metric("rouge2", _mean(2), points=0.01, extremes=all_or_nothing),
    "rougeL": Metric("rougeL", _mean(3), points=0.01, extremes=all_or_nothing),
    "exact_match": ANSWERS["exact_match"],
    "perplexity": LANGUAGE["perplexity"],
    "loss": LANGUAGE["loss"],
}
SPEECH = {
    "wer": Metric("wer", _mean(1), higher_is_better=False, points=0.01, extremes=right_or_wrong),
    "cer": Metric("cer", _mean(1), higher_is_better=False, points=0.01, extremes=right_or_wrong),
    **{name: TRANSLATION[name] for name in ("exact_match", "perplexity", "loss")},
}
UNLABELED = {
    "agreement": Metric("agreement", accuracy, points=0.01, proportion=True, extremes=right_or_wrong),
    "cosine": Metric("cosine", accuracy, points=0.01, extremes=right_or_wrong),
    "divergence": Metric("divergence", loss, higher_is_better=False, points=0.01, bounds=POSITIVE),
}


def pick(metrics: dict[str, Metric], name: str) -> Metric:
    """The metric of that name; an unknown name is refused, with the known ones.

    >>> pick(LANGUAGE, "perplexity").higher_is_better
    False
    """
    if name not in metrics:
        raise BadData(unknown("metric", name, metrics))
    return metrics[name]


def _f1_per_class(sums: np.ndarray) -> np.ndarray:
    true, predicted, both = per_class(sums)
    return _ratio(2 * both, true + predicted)


def _ratio(a: np.ndarray, b: np.ndarray, empty: float = 0.0) -> np.ndarray:
    """a / b, and `empty` where b is 0."""
    return np.divide(a, b, out=np.full(np.broadcast(a, b).shape, empty), where=b != 0)
