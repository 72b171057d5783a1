"""What one example adds to a metric's sums, where the model predicts tokens or generates a text.

`metrics.py` computes metrics from these sums and says what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from sacrebleu.metrics import BLEU, CHRF
from torch import Tensor

from headcount.errors import HeadcountError
from headcount.tasks.metrics import Metric

TASKS_EXTRA = "pip install 'headcount[tasks]'"
REMEMBERED = 100_000  # outputs in the cache of `TextScorer`


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
