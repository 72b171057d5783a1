"""Token classification: a tag for every word, and entities made of tags (BIO, BIOES), counted as seqeval does."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from headcount.errors import BadData, HeadcountError, counted, first_line
from headcount.tasks.classification import are_placeholders, class_ids
from headcount.tasks.columns import TAGS as TAG_COLUMNS
from headcount.tasks.columns import WORDS, Column, find_column
from headcount.tasks.metrics import TAGS, pick
from headcount.tasks.rows import Rows
from headcount.tasks.statistics import REMEMBERED, TASKS_EXTRA, token_counts, token_losses
from headcount.tasks.task import BaseTask, Batch
from headcount.tasks.text import length_limit

OUTSIDE = "O"


class TokenClassification(BaseTask):
    """Sentences of words, each with a tag; the model reads a word's tag at its first token.

    >>> from headcount.tasks.text import word_tokenizer
    >>> rows = [{"tokens": ["Ada", "met", "Bob"], "tags": ["B-person", "O", "B-person"]}]
    >>> task = TokenClassification(rows, word_tokenizer("Ada met Bob"))
    >>> task.batch([0]).labels.tolist(), task.tags  # <s> and </s> have no tag
    ([[-100, 0, 1, 0, -100]], ['B-person', 'O'])

    data: CoNLL files (a word and its tag per line, a blank line between sentences), or rows whose columns `text` and
        `label` are lists, or texts with blanks in between.
    label2id: the model's, for tags that are names; without it, names are numbered in sorted order.
    metric: f1 (of whole entities), accuracy or loss; by default f1, or accuracy if the tags mark no entities.
    max_length: longer sentences are truncated to this many tokens; the words beyond count as not found.
    labels: False if the data has no tags.
    """

    kind = "tagging"
    per_example = ("gold", "starts")

    def __init__(
        self, data: Any, tokenizer: Any, *, text: Column = None, label: Column = None,
        label2id: Mapping[str, int] | None = None, num_labels: int | None = None, metric: str | None = None,
        max_length: int | None = None, split: str | None = None, labels: bool = True,
    ) -> None:  # fmt: skip
        rows = Rows.of(data, split, layout="tags")
        text, remarks = find_column(rows, text, "text", (*WORDS, "text", "sentence"), _is_words)
        words = [_words(rows, i, text) for i in range(len(rows))]
        if labels:
            label, on_label = find_column(rows, label, "label", TAG_COLUMNS, apart=[text])
            ids, self.tags, on_tags = _tag_ids(rows, words, label, label2id, num_labels)
            remarks += [*on_label, *on_tags]
        else:
            ids, self.tags = [[0] * len(one) for one in words], _names(label2id or {})
        features, self.starts, long = _first_tokens(rows, tokenizer, words, length_limit(tokenizer, max_length))
        if long:
            remarks.append(f"{long} of {len(rows)} sentences truncated: the words beyond count as not found")
        self.gold = ids  # a tag per word; `labels` has one per token
        super().__init__(
            features,
            [_at(starts, tags, len(tokens)) for starts, tags, tokens in zip(
                self.starts, ids, features["input_ids"], strict=True)],
            metric=pick(TAGS, metric or ("f1" if any(map(_marks_entity, self.tags)) else "accuracy")),
            rows=rows,
            columns={"text": text, "label": label},
            tokenizer=tokenizer,
            content=words,
            remarks=remarks,
        )  # fmt: skip
        if self.metric.name == "f1":
            if labels and not any(map(_marks_entity, self.tags)):
                tags = ", ".join(self.tags[:4])
                raise BadData(
                    f"the tags ({tags}) mark no entities (B-, I-, …), which f1 counts",
                    advice="choose accuracy as {metric}",
                )
            _get_entities()  # before anything runs

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        return model(**batch.inputs).logits  # (B, T, C)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(B,) mean negative log likelihood of the example's tags."""
        assert batch.labels is not None
        return token_losses(outputs, batch.labels.to(outputs.device))

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        assert batch.labels is not None
        _, _, nll = token_counts(outputs, batch.labels.to(outputs.device))
        counts = []
        for index, row in zip(batch.indices, outputs.argmax(-1).tolist(), strict=True):
            gold = self.gold[index]
            found = [None if start is None else row[start] for start in self.starts[index]]
            outside = self.tags.index(OUTSIDE) if OUTSIDE in self.tags else None
            found = [outside if tag is None else tag for tag in found]  # words that the model did not see
            count = [len(gold), sum(a == b for a, b in zip(gold, found, strict=True))]
            if self.metric.name == "f1":
                true, predicted = (entities(tuple(map(self._name, tags))) for tags in (gold, found))
                count += [len(true), len(predicted), len(true & predicted)]
            counts.append(count)
        table = torch.tensor(counts)
        return self.columns(batch, table[:, :2], nll, table[:, 2:])

    def _name(self, tag: int | None) -> str:
        return OUTSIDE if tag is None else self.tags[tag]

    def relabeled(self, labels: Any) -> TokenClassification:
        part = super().relabeled(labels)
        assert isinstance(part, TokenClassification)
        assert part.labels is not None
        pairs = zip(self.starts, part.labels, strict=True)
        part.gold = [[0 if start is None else int(tags[start]) for start in starts] for starts, tags in pairs]
        return part

    def check(self, model: Any) -> list[str]:
        remarks = super().check(model)
        top, classes = max(max(tags, default=0) for tags in self.gold), model.config.num_labels
        if top >= classes:
            raise BadData(f"the data has the tag {self.tags[top]} (number {top}), but the model has {classes} tags")
        if len(self.tags) < classes:  # those that the data does not have
            known = {int(number): str(name) for name, number in (model.config.label2id or {}).items()}
            self.tags = [*self.tags, *(known.get(i, str(i)) for i in range(len(self.tags), classes))]
        return remarks


@lru_cache(maxsize=REMEMBERED)
def entities(tags: tuple[str, ...]) -> frozenset[tuple[str, int, int]]:
    """The entities that a sentence's tags mark, as seqeval reads them: type, first and last word.

    >>> sorted(entities(("B-person", "I-person", "O", "B-place")))
    [('person', 0, 1), ('place', 3, 3)]
    """
    return frozenset(_get_entities()(list(tags)))


def _get_entities() -> Any:
    try:
        from seqeval.metrics.sequence_labeling import get_entities
    except ImportError as error:
        raise HeadcountError(
            f"F1 of entities requires the package seqeval: {TASKS_EXTRA}",
            advice="or choose accuracy as {metric}",
        ) from error
    return get_entities


def _is_words(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(word, str) for word in value))


def _words(rows: Rows, row: int, column: str) -> list[str]:
    value = rows.table[column][row]
    if not _is_words(value):
        raise BadData(f"{rows.place(row, column)}: expected a list of words, not {value!r}")
    words = value.split() if isinstance(value, str) else list(value)
    if not words:
        raise BadData(f"{rows.place(row, column)}: the sentence is empty")
    return words


def _tag_ids(
    rows: Rows, words: list[list[str]], column: str, label2id: Mapping[str, int] | None, num_labels: int | None
) -> tuple[list[list[int]], list[str], list[str]]:
    """The tag of each word as a number, the names of all tags, and remarks."""
    by_row = [value.split() if isinstance(value, str) else value for value in rows.table[column]]
    numbers = rows.table.get("lines")
    flat: list[Any] = []
    where: list[int] = []
    for i, (tags, sentence) in enumerate(zip(by_row, words, strict=True)):
        if not isinstance(tags, list) or len(tags) != len(sentence):
            count = counted(len(tags), "tag") if isinstance(tags, list) else f"{tags!r}"
            raise BadData(f"{rows.place(i, column)}: {count} for {counted(len(sentence), 'word')}; expected one each")
        flat += tags
        number = i if rows.numbers is None else rows.numbers[i]
        where += numbers[i] if numbers else [number] * len(tags)
    names = {column: rows.classes[column]} if column in rows.classes else {}
    one_each = Rows({column: flat}, rows.source, rows.split, rows.unit, where, classes=names)
    ids, guessed, remarks = class_ids(one_each, column, label2id, num_labels)
    known = guessed or ({} if are_placeholders(label2id) else dict(label2id or {}))
    tags = _names(known) or list(rows.classes.get(column, map(str, range(max(ids) + 1))))
    left = iter(ids)
    return [[next(left) for _ in sentence] for sentence in words], tags, remarks


def _names(numbered: Mapping[str, int]) -> list[str]:
    """The names of all tags in the order of their numbers.

    >>> _names({"O": 2, "B-x": 0})
    ['B-x', '1', 'O']
    """
    known = {int(number): str(name) for name, number in numbered.items()}
    return [known.get(i, str(i)) for i in range(max(known, default=-1) + 1)]


def _marks_entity(tag: str) -> bool:
    return tag[:2] in ("B-", "I-", "E-", "S-", "L-", "U-")


def _first_tokens(
    rows: Rows, tokenizer: Any, words: list[list[str]], limit: int | None
) -> tuple[dict[str, list[list[int]]], list[list[int | None]], int]:
    """The model's inputs, where each word's first token is (None if it has none), and how many were truncated."""
    options: dict[str, Any] = {"is_split_into_words": True, "verbose": False}
    if limit is not None:
        options |= {"truncation": True, "max_length": limit}
    try:
        encoded = tokenizer(words, **options)
        placed = [encoded.word_ids(i) for i in range(len(words))]
    except (ValueError, AssertionError) as error:
        raise BadData(
            f"{type(tokenizer).__name__} cannot tell which tokens make a word: {first_line(error)}"
        ) from error
    starts, long = [], 0
    for sentence, places in zip(words, placed, strict=True):
        first = {word: position for position, word in reversed(list(enumerate(places))) if word is not None}
        starts.append([first.get(i) for i in range(len(sentence))])
        long += limit is not None and len(places) >= limit and max(first, default=-1) < len(sentence) - 1
    for i, found in enumerate(starts):
        if all(start is None for start in found):
            raise BadData(f"{rows.place(i)}: the tokenizer makes nothing of {' '.join(words[i])!r}")
    return dict(encoded), starts, long


def _at(starts: list[int | None], tags: list[int], length: int) -> list[int]:
    """A label for each token: a word's tag at its first token, -100 elsewhere."""
    labels = [-100] * length
    for start, tag in zip(starts, tags, strict=True):
        if start is not None:
            labels[start] = tag
    return labels
