"""Texts to the statistics of BLEU, chrF or exact match; sacrebleu does the counting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from sacrebleu.metrics import BLEU, CHRF
from torch import Tensor

from headcount.tasks.base import Metric

REMEMBERED = 100_000  # outputs; under most masks most outputs are those of the whole model


class TextScorer:
    """Statistics of output texts, remembered, since most masks change few outputs.

    >>> TextScorer("bleu").count(["a small dog"], ["a dog"])
    [[3, 2, 2, 0, 0, 0, 3, 2, 1, 0]]

    metric: "bleu", "chrf" or "exact_match". tokenize: sacrebleu's tokenizer for BLEU.
    """

    def __init__(self, metric: str, tokenize: str = "13a") -> None:
        self.counter: BLEU | CHRF | None = None
        if metric == "bleu":
            self.counter = BLEU(tokenize=tokenize, force=True)  # force: no warnings about tokenized texts
        elif metric == "chrf":
            self.counter = CHRF()
        self.remembered: dict[tuple[str, tuple[int, ...]], list[float]] = {}

    def signed(self, metric: Metric) -> Metric:
        """The metric with sacrebleu's signature."""
        if self.counter is None:
            return metric
        self.counter.corpus_score(["a"], [["a"]])  # a signature exists only once something was scored
        return replace(metric, signature=str(self.counter.get_signature()))

    def count(self, texts: Sequence[str], targets: Sequence[str]) -> list[list[float]]:
        """Per text, the statistics whose sums give the metric."""
        if self.counter is None:
            return [[1, int(a.strip() == b.strip())] for a, b in zip(texts, targets, strict=True)]
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


def _unpadded(row: list[int], pad: int) -> tuple[int, ...]:
    end = len(row)
    while end and row[end - 1] == pad:
        end -= 1
    return tuple(row[:end])
