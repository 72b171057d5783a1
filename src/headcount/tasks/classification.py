"""Texts, or pairs of texts, and a class for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headcount.errors import BadData
from headcount.tasks.base import Batch
from headcount.tasks.base_task import BaseTask
from headcount.tasks.columns import Column, find_label, find_text
from headcount.tasks.data import Rows
from headcount.tasks.labels import agrees, class_ids
from headcount.tasks.metrics import CLASSIFICATION, pick
from headcount.tasks.tokens import pad_token, texts_of, tokenized


class Classification(BaseTask):
    """A classifier's task: one or two text columns and a label.

    >>> from headcount.tasks.toy import word_tokenizer
    >>> rows = [{"text": "a fine film", "label": "good"}, {"text": "a dull film", "label": "bad"}]
    >>> task = Classification(rows, word_tokenizer("a fine dull film"), label2id={"bad": 0, "good": 1})
    >>> len(task), task.labels, task.batch([0]).inputs["input_ids"].shape
    (2, [1, 0], torch.Size([1, 5]))

    data: whatever `Rows.of` reads. text, pair, label: columns by name or number; guessed if left out.
    label2id: the model's, for labels that are names; without it names are numbered in sorted order.
    num_labels: how many classes the model has, where label2id does not say.
    metric: accuracy, f1 (of class 1), f1_macro, matthews or loss.
    max_length: longer texts are cut to so many tokens, which is counted and said.
    """

    kind = "classification"

    def __init__(
        self,
        data: Any,
        tokenizer: Any,
        *,
        text: Column = None,
        pair: Column = None,
        label: Column = None,
        label2id: Mapping[str, int] | None = None,
        num_labels: int | None = None,
        metric: str = "accuracy",
        max_length: int | None = None,
        split: str | None = None,
    ) -> None:
        rows = Rows.of(data, split)
        label, said_label = find_label(rows, label)
        text, pair, said_text = find_text(rows, text, pair, label)
        labels, self.guessed, said_classes = class_ids(rows, label, label2id, num_labels)
        texts = [texts_of(rows, column) for column in (text, pair) if column is not None]
        features, said_length = tokenized(rows, tokenizer, texts, max_length)
        pad, said_pad = pad_token(tokenizer)
        super().__init__(
            features,
            labels,
            metric=pick(CLASSIFICATION, metric),
            pad=pad,
            content=list(zip(*texts, strict=True)),
            places=[rows.place(i) for i in range(len(rows))],
            remarks=[*rows.remarks, *said_text, *said_label, *said_classes, *said_length, *said_pad],
            settings={
                "data": rows.source,
                "split": rows.split,
                "text": text,
                "pair": pair,
                "label": label,
                "tokenizer": type(tokenizer).__name__,
            },
        )
        self.tokenizer, self.tokenizer_pad = tokenizer, tokenizer.pad_token_id

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        with _padding(model, self.pad):
            return model(**batch.inputs).logits  # (B, C)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(outputs.float(), _labels(batch).to(outputs.device), reduction="none")

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        labels = _labels(batch).to(outputs.device)
        predicted = outputs.argmax(-1)  # (B,)
        right = predicted == labels
        columns = [torch.ones_like(labels), right, self.losses(outputs, batch)]
        if self.metric.name in ("f1", "f1_macro", "matthews"):
            true_class = F.one_hot(labels, outputs.shape[-1])  # (B, C)
            columns += [true_class, F.one_hot(predicted, outputs.shape[-1]), true_class * right[:, None]]
        return self.columns(batch, *columns)

    def check(self, model: Any) -> list[str]:
        remarks = super().check(model)
        config = model.config
        if getattr(config, "problem_type", None) not in (None, "single_label_classification"):
            raise BadData(f"the model is for {config.problem_type}, not for one class of several")
        if config.num_labels < 2:
            raise BadData("the model has a single output: it is for regression, not for classes")
        assert self.labels is not None
        top = max(self.labels)
        if top >= config.num_labels:
            raise BadData(
                f"{self.places[self.labels.index(top)]}: label {top}, but the model knows only "
                f"{config.num_labels} classes (0 to {config.num_labels - 1})"
            )
        if self.guessed and not agrees(self.guessed, config.label2id):
            raise BadData(
                f"the labels' names ({', '.join(self.guessed)}) do not say which of the model's classes they are "
                f"({', '.join(config.label2id)}); pass label2id"
            )
        if self.metric.name == "f1" and config.num_labels != 2:
            raise BadData(f"f1 is for two classes, the model has {config.num_labels}: use f1_macro")
        model_pad = config.get_text_config().pad_token_id
        if None not in (model_pad, self.tokenizer_pad) and model_pad != self.tokenizer_pad:
            raise BadData(
                "the tokenizer does not fit the model: "
                f"it pads with token {self.tokenizer_pad}, the model with {model_pad}"
            )
        return remarks


def _labels(batch: Batch) -> Tensor:
    assert batch.labels is not None
    return batch.labels


@contextmanager
def _padding(model: Any, pad: int) -> Iterator[None]:
    """A decoder reads the class at the last token that is no padding, so it must know what padding is."""
    config = model.config.get_text_config()
    before = config.pad_token_id
    if before is None:
        config.pad_token_id = pad
    try:
        yield
    finally:
        config.pad_token_id = before
