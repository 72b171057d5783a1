"""Texts to step through, from any data that a task could be made of; a label is shown beside, and never needed."""

from __future__ import annotations

from typing import Any

from headcount.errors import BadData
from headcount.tasks import (
    LABELS,
    Column,
    QuestionAnswering,
    Rows,
    TokenClassification,
    find_text,
    find_translation,
    guess_kind,
    texts_of,
)


def read_examples(
    model: Any,
    tokenizer: Any,
    data: Any,
    *,
    text: Column = None,
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> tuple[list[dict[str, Any]], list[str]]:
    """The texts of a data set, each with its second text and its label if it has them, and remarks.

    >>> from headcount.tasks.classification import toy_classifier
    >>> model, task = toy_classifier()
    >>> rows = [{"sentence": "fine", "label": 1}, {"sentence": "dull", "label": 0}]
    >>> read_examples(model, task.tokenizer, rows)[0][0]
    {'text': 'fine', 'pair': None, 'label': 'LABEL_1'}

    data: a file, a data set, a list of dicts or a hub id. text: the column, guessed if left out.
    """
    kind = guess_kind(model)
    rows = Rows.of(data, split, layout="tags" if kind == "tagging" else None).take(limit, seed)
    texts, seconds, labels, remarks = _columns(model, tokenizer, kind, rows, text)
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


def _columns(
    model: Any, tokenizer: Any, kind: str | None, rows: Rows, text: Column
) -> tuple[list[str], list[str] | None, list[Any] | None, list[str]]:
    """Texts, second texts and labels, as far as there are any, and remarks on what was guessed."""
    if kind == "answering":
        asked: list[Any] = QuestionAnswering(rows, tokenizer, text=text, labels=False).content
        return [question for question, _ in asked], [context for _, context in asked], None, []
    if kind == "tagging":
        words: list[Any] = TokenClassification(rows, tokenizer, text=text, metric="loss", labels=False).content
        return [" ".join(one) for one in words], None, None, []
    if kind in ("translation", "summarization"):
        if len(rows.names) == 1 or text is not None:
            return texts_of(rows, rows.name(0 if text is None else text)), None, None, []
        source, target, remarks = find_translation(rows, None, None)
        return texts_of(rows, source), None, rows.column(target), remarks
    column, pair, remarks = find_text(rows, text, None)
    if kind not in ("classification", "regression"):
        return texts_of(rows, column), None, None, remarks
    seconds = None if pair is None else texts_of(rows, pair)
    label = _label(rows, {column, pair})
    labels = None if label is None else rows.column(label) if kind == "regression" else _named(model, rows, label)
    return texts_of(rows, column), seconds, labels, remarks


def _label(rows: Rows, texts: set[str | None]) -> str | None:
    """The column that is called a label; in a file without names, the one beside the text."""
    rest = [name for name in rows.names if name not in texts]
    named = [name for name in rest if name.strip().lower() in LABELS or name in rows.classes]
    return next(iter(named), rest[0] if len(rest) == 1 and rest[0].isdecimal() else None)


def _named(model: Any, rows: Rows, column: str) -> list[Any]:
    """Labels by the names of their classes, where they are numbers."""
    names = rows.classes.get(column) or [str(name) for _, name in sorted(model.config.id2label.items())]

    def name(value: Any) -> Any:
        number = str(value).strip()
        return names[int(number)] if number.isdecimal() and int(number) < len(names) else value

    return [name(value) for value in rows.column(column)]
