"""Texts to step through, from any data that a task could be made of; a label is shown beside, and never needed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from headcount.errors import BadData
from headcount.tasks import Column, Rows, find_label, find_text, find_translation, guess_kind, texts_of


def read_examples(
    model: Any, data: Any, *, text: Column = None, split: str | None = None, limit: int | None = None, seed: int = 0
) -> tuple[list[dict[str, Any]], list[str]]:
    """The texts of a data set, each with its second text and its label if it has them, and remarks.

    >>> from headcount.tasks.toy import toy_classifier
    >>> rows = [{"sentence": "fine", "label": 1}, {"sentence": "dull", "label": 0}]
    >>> read_examples(toy_classifier()[0], rows)[0][0]
    {'text': 'fine', 'pair': None, 'label': 'LABEL_1'}

    data: a file, a data set, a list of dicts or a hub id. text: the column, guessed if left out.
    """
    rows = Rows.of(data, split).take(limit, seed)
    kind, label, pair = guess_kind(model), None, None
    if kind == "translation":
        source, target, remarks = _source(rows, text)
        texts, seconds = texts_of(rows, source), None
        labels = None if target is None else rows.column(target)
    else:
        if kind == "classification":
            with suppress(BadData):
                label, _ = find_label(rows, None)
        column, pair, remarks = find_text(rows, text, None, label)
        seconds = texts_of(rows, pair) if pair is not None and kind == "classification" else None
        texts, labels = texts_of(rows, column), None if label in (None, column) else _named(model, rows, str(label))
    examples = [
        {
            "text": texts[place],
            "pair": None if seconds is None else seconds[place],
            "label": None if labels is None else str(labels[place]),
        }
        for place in range(len(rows))
        if texts[place].strip()
    ]
    if not examples:
        raise BadData(f"{rows.source}: all texts are empty")
    return examples, [*rows.remarks, *remarks]


def _source(rows: Rows, text: Column) -> tuple[str, str | None, list[str]]:
    if len(rows.names) == 1 or text is not None:
        return rows.name(0 if text is None else text), None, []
    return find_translation(rows, None, None)


def _named(model: Any, rows: Rows, column: str) -> list[Any]:
    """Labels by the names of their classes, where they are numbers."""
    names = rows.classes.get(column) or [str(name) for _, name in sorted(model.config.id2label.items())]

    def name(value: Any) -> Any:
        number = str(value).strip()
        return names[int(number)] if number.isdecimal() and int(number) < len(names) else value

    return [name(value) for value in rows.column(column)]
