"""Classification: a class for each text or pair of texts, with labels numbered as the model numbers its classes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headcount.errors import BadData
from headcount.tasks.columns import Column, find_label
from headcount.tasks.metrics import CLASSIFICATION, pick
from headcount.tasks.rows import Rows
from headcount.tasks.task import BaseTask, Batch
from headcount.tasks.text import read_texts, word_tokenizer


class SingleLabel(BaseTask):
    """What tasks share whose model scores several classes, (B, C), of which one is right."""

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(B,) cross-entropy of the right class."""
        return F.cross_entropy(outputs.float(), class_labels(batch).to(outputs.device), reduction="none")

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        """[1, right, loss], and what else the metric needs."""
        labels = class_labels(batch).to(outputs.device)
        predicted = outputs.argmax(-1)  # (B,)
        right = predicted == labels
        columns = [torch.ones_like(labels), right, self.losses(outputs, batch)]
        if self.metric.name == "top5":
            columns.append((outputs.topk(min(5, outputs.shape[-1])).indices == labels[:, None]).any(-1))
        elif self.metric.name == "logit_difference":  # of the right answer and the best other one
            own = outputs.gather(1, labels[:, None])[:, 0]
            columns.append(own - outputs.scatter(1, labels[:, None], -torch.inf).amax(-1))
        elif self.metric.name in ("f1", "f1_macro", "matthews"):
            true_class = F.one_hot(labels, outputs.shape[-1])  # (B, C)
            columns += [true_class, F.one_hot(predicted, outputs.shape[-1]), true_class * right[:, None]]
        return self.columns(batch, *columns)


class Classification(SingleLabel):
    """One or two columns of texts, and one of labels.

    >>> from headcount.tasks.text import word_tokenizer
    >>> rows = [{"text": "a fine film", "label": "good"}, {"text": "a dull film", "label": "bad"}]
    >>> task = Classification(rows, word_tokenizer("a fine dull film"), label2id={"bad": 0, "good": 1})
    >>> len(task), task.labels, task.batch([0]).inputs["input_ids"].shape
    (2, [1, 0], torch.Size([1, 5]))

    data: whatever `Rows.of` reads. text, pair, label: columns by name or number; guessed if left out.
    label2id: the model's, for labels that are names. If it has only placeholders (LABEL_0), names are refused: nothing
        says which is which. Without it, names are numbered in sorted order, with a remark, and `check` refuses a model
        that names its classes otherwise.
    num_labels: how many classes the model has, if label2id does not say.
    metric: accuracy, f1 (of class 1), f1_macro, matthews, loss or logit_difference (of the right class and the best
        other one).
    max_length: longer texts are truncated to this many tokens, with a remark.
    labels: False if the data has no labels.
    """

    kind = "classification"

    def __init__(
        self, data: Any, tokenizer: Any, *, text: Column = None, pair: Column = None, label: Column = None,
        label2id: Mapping[str, int] | None = None, num_labels: int | None = None, metric: str = "accuracy",
        max_length: int | None = None, split: str | None = None, labels: bool = True,
    ) -> None:  # fmt: skip
        rows = Rows.of(data, split)
        classes, self.guessed, on_classes = [0] * len(rows), dict[str, int](), list[str]()
        if labels:
            label, on_classes = find_label(rows, label)
            classes, self.guessed, remarks = class_ids(rows, label, label2id, num_labels)
            on_classes += remarks
        texts = read_texts(rows, tokenizer, text, pair, label, max_length, on_classes)
        super().__init__(labels=classes, metric=pick(CLASSIFICATION, metric), **texts)
        self.tokenizer_pad = tokenizer.pad_token_id

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        with padding_known(model, self.pad):
            return model(**batch.inputs).logits  # (B, C)

    def check(self, model: Any) -> list[str]:
        remarks = super().check(model)
        config = model.config
        refuse_other_outputs(config)
        assert self.labels is not None
        top = max(self.labels)
        if top >= config.num_labels:
            raise BadData(
                f"{self.places[self.labels.index(top)]}: label {top}, but the model has "
                f"{config.num_labels} classes (0 to {config.num_labels - 1})"
            )
        if self.guessed and not agrees(self.guessed, config.label2id):
            raise BadData(
                f"the labels ({', '.join(self.guessed)}) cannot be matched with the model's classes "
                f"({', '.join(config.label2id)})",
                advice="pass {label2id}",
            )
        if self.metric.name == "f1" and config.num_labels != 2:
            raise BadData(
                f"f1 is for two classes, but the model has {config.num_labels}", advice="choose f1_macro as {metric}"
            )
        model_pad = config.get_text_config().pad_token_id
        if None not in (model_pad, self.tokenizer_pad) and model_pad != self.tokenizer_pad:
            raise BadData(
                "the tokenizer does not fit the model: "
                f"it pads with token {self.tokenizer_pad}, the model with {model_pad}"
            )
        return remarks


def refuse_other_outputs(config: Any) -> None:
    """Refuse a model whose outputs are not the scores of classes, one of which is right."""
    if getattr(config, "problem_type", None) not in (None, "single_label_classification"):
        raise BadData(
            f"the model is for {config.problem_type}, not for single_label_classification",
            "change {kind}"
            if config.problem_type == "regression"
            else "docs/tasks.md shows how to write a task for it",
        )
    if getattr(config, "num_labels", 2) < 2:
        raise BadData("the model has a single output, for regression, not one for each class", advice="change {kind}")


def class_labels(batch: Batch) -> Tensor:
    """(B,) the examples' classes."""
    assert batch.labels is not None
    return batch.labels


@contextmanager
def padding_known(model: Any, pad: int) -> Iterator[None]:
    """Tell the model the padding token: a decoder reads the class at the last token before the padding."""
    config = model.config.get_text_config()
    before = config.pad_token_id
    if before is None:
        config.pad_token_id = pad
    try:
        yield
    finally:
        config.pad_token_id = before


def class_ids(
    rows: Rows, column: str, label2id: Mapping[str, int] | None = None, num_labels: int | None = None
) -> tuple[list[int], dict[str, int], list[str]]:
    """The class number of each row, the numbering of names if it was guessed, and remarks.

    >>> class_ids(Rows({"label": ["no", "yes", "no"]}), "label", {"NO": 1, "YES": 0})
    ([1, 0, 1], {}, [])
    >>> class_ids(Rows({"label": ["no", "yes", "no"]}), "label")
    ([0, 1, 0], {'no': 0, 'yes': 1}, ['labels numbered in sorted order: no = 0, yes = 1'])

    label2id: the model's; if it has only placeholders like LABEL_0, names are refused. Without it, they are numbered in
        sorted order, but only if there are `num_labels` of them: one that is missing would shift the others.
    num_labels: how many classes the model has, to refuse numbers beyond it.
    """
    values = [_clean(rows, i, column) for i in range(len(rows))]
    if label2id and num_labels is None:
        num_labels = max(label2id.values()) + 1
    known = _lower(label2id)
    placeholders = are_placeholders(known)
    values, remarks = _by_class_names(rows, column, values, {} if placeholders else known)
    guessed: dict[str, int] = {}
    if not all(value.lower() in known for value in set(values)):
        if all(map(_is_whole, set(values))):
            known = {value: int(value) for value in set(values)}
        elif placeholders and label2id and num_labels == len(set(values)):
            names, classes = ", ".join(sorted(set(values))[:4]), ", ".join(list(label2id)[:4])
            raise BadData(
                f"{rows.place(0, column)}: the labels are names ({names}), but the model calls its classes {classes}, "
                "so they cannot be matched; number the labels, or set label2id in the model's config.json"
            )
        elif placeholders and num_labels in (None, len(set(values))):
            guessed = {name: number for number, name in enumerate(sorted(set(values)))}
            known = {name.lower(): number for name, number in guessed.items()}
            remarks.append(f"labels numbered in sorted order: {_list(guessed)}")
    ids = []
    for i, value in enumerate(values):
        number = known.get(value.lower())
        if number is None or number < 0 or (num_labels is not None and number >= num_labels):
            expected = _list(label2id, num_labels)
            raise BadData(f"{rows.place(i, column)}: label {value!r} is not one of the model's; expected {expected}")
        ids.append(number)
    return ids, guessed, remarks


def agrees(guessed: Mapping[str, int], label2id: Mapping[str, int]) -> bool:
    """Whether a guessed numbering can be the model's: it is the same, or the model has placeholders for names.

    >>> agrees({"bad": 0, "good": 1}, {"LABEL_0": 0, "LABEL_1": 1})
    True
    >>> agrees({"bad": 0, "good": 1}, {"GOOD": 0, "BAD": 1})
    False
    """
    known = _lower(label2id)
    same = all(known.get(name.lower()) == number for name, number in guessed.items())
    return same or (are_placeholders(known) and len(guessed) == len(known))


def _lower(label2id: Mapping[str, int] | None) -> dict[str, int]:
    return {str(name).strip().lower(): int(number) for name, number in (label2id or {}).items()}


def are_placeholders(label2id: Mapping[str, int] | None) -> bool:
    """Whether the names, if there are any, are transformers' LABEL_0, LABEL_1, …

    >>> are_placeholders({"LABEL_0": 0}), are_placeholders({"good": 0})
    (True, False)
    """
    return all(name == f"label_{number}" for name, number in _lower(label2id).items())


def _clean(rows: Rows, row: int, column: str) -> str:
    value = rows.table[column][row]
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        raise BadData(f"{rows.place(row, column)}: there is no label")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(int(value) if isinstance(value, bool) else value).strip()


def _by_class_names(
    rows: Rows, column: str, values: list[str], known: Mapping[str, int]
) -> tuple[list[str], list[str]]:
    """The names of numbered classes in place of the numbers, since the model can number them differently."""
    names = rows.classes.get(column)
    if not names or not known:
        return values, []
    if any(name.lower() not in known for name in names):
        return values, [f"the data's classes ({', '.join(names)}) are not the model's: labels are matched by number"]
    return [names[int(value)] if value != "-1" else value for value in values], []


def _is_whole(value: str) -> bool:
    return re.fullmatch(r"-?[0-9]{1,15}", value) is not None


def _list(label2id: Mapping[str, int] | None, num_labels: int | None = None) -> str:
    if label2id and not are_placeholders(label2id):
        return ", ".join(f"{name} = {number}" for name, number in label2id.items())
    return f"0 to {num_labels - 1}" if num_labels else "whole numbers from 0"


def toy_classifier() -> tuple[Any, Classification]:
    """A random BERT of two layers of four heads, and a classification of two texts.

    >>> model, task = toy_classifier()
    >>> type(model).__name__, len(task)
    ('BertForSequenceClassification', 2)
    """
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=20, pad_token_id=0)
    rows = [{"text": "a fine film", "label": 1}, {"text": "dull", "label": 0}]
    return BertForSequenceClassification(config).eval(), Classification(rows, word_tokenizer("a fine dull film"))
