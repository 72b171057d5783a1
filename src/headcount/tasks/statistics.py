"""What one example adds to a metric's sums: a real one, where the model predicts tokens or generates a text, or an
imagined one, all right, all wrong or far off, from which intervals learn how far a score can move (`extremes` of a
metric).

`metrics.py` computes metrics from these sums and says what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from sacrebleu.metrics import BLEU, CHRF
from torch import Tensor

from headcount.errors import HeadcountError

if TYPE_CHECKING:
    from headcount.tasks.metrics import Metric

TASKS_EXTRA = "pip install 'headcount[tasks]'"
REMEMBERED = 100_000  # outputs in the cache of `TextScorer`
FAR = 5.0  # nats per token above the mean, of an imagined loss


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """(B,) mean negative log likelihood of each example's predicted tokens.

    >>> logits = torch.zeros(2, 3, 4)  # (B, T, V): four equally likely tokens
    >>> labels = torch.tensor([[1, 2, 3], [0, -100, -100]])
    >>> token_losses(logits, labels).exp().round(decimals=4).tolist()
    [4.0, 4.0]

    labels: (B, T) the token that the logits of the same position should predict; -100 for none.
    """
    return _likelihoods(logits, labels).sum(1) / (labels != -100).sum(1).clamp(min=1)


def token_counts(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(B,) each: the number of predicted tokens, how many are right, and their summed negative log likelihood.

    >>> [x.tolist() for x in token_counts(torch.eye(3)[None] * 50, torch.tensor([[0, 2, -100]]))]
    [[2], [1], [50.0]]
    """
    predicted = labels != -100
    right = (logits.argmax(-1) == labels) & predicted
    return predicted.sum(1), right.sum(1), _likelihoods(logits, labels).sum(1)


def _likelihoods(logits: Tensor, labels: Tensor) -> Tensor:
    """(B, T) negative log likelihood of each token, 0 where none is to be predicted."""
    flat = logits.float().flatten(0, -2), labels.flatten()  # with the classes last, nothing is copied
    return F.cross_entropy(*flat, ignore_index=-100, reduction="none").view(labels.shape)


class TextScorer:
    """Statistics of generated texts, cached, since most masks change few outputs.

    >>> TextScorer("bleu").count(["a small dog"], ["a dog"])
    [[3, 2, 2, 0, 0, 0, 3, 2, 1, 0]]

    metric: "bleu", "chrf", "rouge1", "rouge2", "rougeL", "wer", "cer" or "exact_match". tokenize: sacrebleu's tokenizer
        for BLEU. normalize: applied to both texts first.
    """

    def __init__(self, metric: str, tokenize: str = "13a", normalize: Callable[[str], str] = lambda text: text) -> None:
        self.normalize = normalize
        self.counter: BLEU | CHRF | None = None
        self.score: Callable[[str, str], list[float]] = _exact
        if metric == "bleu":
            self.counter = BLEU(tokenize=tokenize, force=True)  # without warnings about tokenized texts
        elif metric == "chrf":
            self.counter = CHRF()
        elif metric.startswith("rouge"):
            self.score = _rouge()
        elif metric in ("wer", "cer"):
            self.score = _error_rate(metric)
        self.remembered: dict[tuple[str, tuple[int, ...]], list[float]] = {}

    def signed(self, metric: Metric) -> Metric:
        """The metric with sacrebleu's signature."""
        if self.counter is None:
            return metric
        self.counter.corpus_score(["a"], [["a"]])  # sacrebleu has a signature once something was scored
        return replace(metric, signature=str(self.counter.get_signature()))

    def count(self, texts: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """Per text, the statistics whose sums give the metric."""
        texts, targets = list(map(self.normalize, texts)), list(map(self.normalize, targets))
        if self.counter is None:
            return [self.score(text, target) for text, target in zip(texts, targets, strict=True)]
        return self.counter._extract_corpus_statistics(texts, [targets])

    def statistics(self, tokenizer: Any, ids: Tensor, targets: Sequence[str], pad: int) -> Tensor:
        """(B, S) statistics of generated token ids (B, T)."""
        if len(self.remembered) > REMEMBERED:
            self.remembered.clear()
        keys = [(target, _unpadded(row, pad)) for target, row in zip(targets, ids.tolist(), strict=True)]
        new = [key for key in dict.fromkeys(keys) if key not in self.remembered]
        if new:
            texts = tokenizer.batch_decode([list(row) for _, row in new], skip_special_tokens=True)
            counts = self.count(texts, [target for target, _ in new])
            self.remembered.update(zip(new, counts, strict=True))
        return torch.tensor([self.remembered[key] for key in keys], dtype=torch.float64)


def _exact(text: str, target: str) -> list[float]:
    return [1, int(text.strip() == target.strip())]


def _rouge() -> Callable[[str, str], list[float]]:
    """[1, ROUGE-1, ROUGE-2, ROUGE-L], F-measures with stems, as rouge-score computes them."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise HeadcountError(f"ROUGE requires the package rouge-score: {TASKS_EXTRA}") from error
    kinds = ("rouge1", "rouge2", "rougeL")
    scorer = RougeScorer(kinds, use_stemmer=True)

    def score(text: str, target: str) -> list[float]:
        found = scorer.score(target, text)
        return [1, *(found[kind].fmeasure for kind in kinds)]

    return score


def _error_rate(metric: str) -> Callable[[str, str], list[float]]:
    """[words or characters of the reference, errors], as jiwer counts them."""
    try:
        import jiwer
    except ImportError as error:
        raise HeadcountError(f"error rates of speech require the package jiwer: {TASKS_EXTRA}") from error
    process: Any = jiwer.process_words if metric == "wer" else jiwer.process_characters

    def score(text: str, target: str) -> list[float]:
        found = process(target, text)
        missed = found.substitutions + found.deletions
        return [found.hits + missed, missed + found.insertions]

    return score


def _unpadded(row: list[int], pad: int) -> tuple[int, ...]:
    end = len(row)
    while end and row[end - 1] == pad:
        end -= 1
    return tuple(row[:end])


def right_or_wrong(statistics: np.ndarray) -> np.ndarray:
    """Extremes of accuracy: an example of mean size, all right and all wrong.

    >>> right_or_wrong(np.array([[4.0, 3.0, 0.9], [2.0, 2.0, 0.1]]))[0].tolist()
    [[3.0, 3.0, 0.0], [3.0, 0.0, 0.0]]
    """
    size = statistics[:, 0].mean()
    extremes = np.zeros((1, 2, statistics.shape[1]))
    extremes[0, :, 0], extremes[0, 0, 1] = size, size
    return extremes


def one_of_each_class(statistics: np.ndarray) -> np.ndarray:
    """Extremes of F1 and Matthews: an example of each class, right, and mistaken for the most predicted other class."""
    _, predicted, _ = per_class(statistics.sum(0))
    classes = len(predicted)
    extremes = np.zeros((classes, 2, statistics.shape[1]))
    extremes[..., 0] = 1
    for true in range(classes):
        others = np.where(np.arange(classes) == true, -1, predicted)
        for place, guess in enumerate((true, int(others.argmax()))):
            extremes[true, place, [3 + true, 3 + classes + guess]] = 1
            extremes[true, place, [1, 3 + 2 * classes + true]] = guess == true
    return extremes


def furthest_ahead_or_behind(statistics: np.ndarray) -> np.ndarray:
    """Extremes of the logit difference: the right answer as far ahead, or behind, as any answer was.

    >>> furthest_ahead_or_behind(np.array([[1.0, 1, 0.1, 2.0], [1, 0, 0.9, -3.0]]))[0].tolist()
    [[1.0, 1.0, 0.0, 3.0], [1.0, 0.0, 0.0, -3.0]]
    """
    furthest = np.abs(statistics[:, 3]).max()
    return np.array([[[1.0, 1.0, 0.0, furthest], [1.0, 0.0, 0.0, -furthest]]])


def losses_far_off(statistics: np.ndarray) -> np.ndarray:
    """Imagined losses of texts of mean length: 5 nats per token above the mean against the mean; the mean against none.

    Losses have no largest value. 5 nats are chosen: rises of up to 4 nats in few texts are then seldom overlooked.

    >>> losses_far_off(np.array([[4.0, 3.0, 6.0], [2.0, 2.0, 2.0]]))[..., 2].tolist()
    [[19.0, 4.0], [4.0, 0.0]]
    """
    mean = statistics.mean(0)
    above, none = mean.copy(), mean.copy()
    above[2], none[2] = mean[2] + FAR * mean[0], 0.0
    return np.array([[above, mean], [mean, none]])


def ngrams_all_or_none(statistics: np.ndarray) -> np.ndarray:
    """Extremes of BLEU: a text as long as the mean reference, with every n-gram right, and with none."""
    total = np.maximum((length := statistics[:, 1].mean()) - np.arange(4), 0)
    return np.stack([np.concatenate([[length, length], correct, total]) for correct in (total, 0 * total)])[None]


def characters_all_or_none(statistics: np.ndarray) -> np.ndarray:
    """Extremes of chrF: a text as long as the mean reference, with every n-gram right, and with none."""
    mean = statistics[:, 1::3].mean(0)  # (6,)
    return np.stack([np.stack([mean, mean, matched], axis=1).ravel() for matched in (mean, 0 * mean)])[None]


def all_or_nothing(statistics: np.ndarray) -> np.ndarray:
    """Extremes of a mean of values from 0 to 1, whichever of the statistics it is of."""
    return np.stack([np.ones(statistics.shape[1]), np.eye(statistics.shape[1])[0]])[None]


def entities_all_or_none(statistics: np.ndarray) -> np.ndarray:
    """Extremes of the F1 of entities: a sentence with the mean number of them, all found, and others found instead."""
    words, number = statistics[:, 0].mean(), max(1.0, statistics[:, 3].mean())
    return np.array([[[words, words, 0, number, number, number], [words, 0, 0, number, number, 0]]])


def per_class(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts of each class, true, predicted and both at once, each (..., C)."""
    true, predicted, both = np.split(sums[..., 3:], 3, axis=-1)
    return true, predicted, both
