"""Which column is the text, which the label: by well-known names, otherwise by what the columns hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headcount.errors import BadData

if TYPE_CHECKING:
    from headcount.tasks.data import Rows

PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text1", "text2"),
    ("#1 string", "#2 string"),
)
TEXTS = ("text", "sentence", "review", "content", "document", "comment", "tweet", "title", "question")
LABELS = ("label", "labels", "quality", "class", "target", "sentiment", "gold_label", "category")
SOURCES = ("source", "src", "input", "article", "document")
TARGETS = ("target", "tgt", "output", "reference", "summary", "highlights", "translation")
LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "pl", "cs", "ro", "ru", "tr", "zh", "ja")
KNOWN = {*TEXTS, *LABELS, *SOURCES, *TARGETS, *LANGUAGES, *(name for pair in PAIRS for name in pair)}

Column = str | int | None


def find_text(rows: Rows, text: Column, pair: Column, label: str | None = None) -> tuple[str, str | None, list[str]]:
    """The text column, the second text column if there is one, and what was guessed.

    >>> from headcount.tasks.data import Rows
    >>> find_text(Rows({"premise": ["a"], "hypothesis": ["b"]}), None, None)[:2]
    ('premise', 'hypothesis')
    """
    if text is not None:
        return rows.name(text), None if pair is None else rows.name(pair), []
    lower = {name.strip().lower(): name for name in rows.names if name != label}
    if pair is None:
        for first, second in PAIRS:
            if first in lower and second in lower:
                return lower[first], lower[second], [_said("texts", lower[first], lower[second])]
    second_name = None if pair is None else rows.name(pair)
    guess = next((lower[name] for name in TEXTS if name in lower and lower[name] != second_name), None)
    if guess is None:
        texts = [n for n in lower.values() if n != second_name and _is_text(rows.table[n])]
        if not texts:
            raise BadData(f"{rows.source}: no column of texts among {', '.join(rows.names)}; pass text=…")
        guess = max(texts, key=lambda name: sum(len(value) for value in rows.table[name]))
    return guess, second_name, [] if len(rows.names) == 1 else [_said("text", guess)]


def find_label(rows: Rows, label: Column) -> tuple[str, list[str]]:
    """The column of labels, and what was guessed.

    >>> from headcount.tasks.data import Rows
    >>> find_label(Rows({"0": ["gj04"] * 4, "1": ["0", "1", "1", "0"], "2": ["", "*", "", ""]}), None)[0]
    '1'
    """
    if label is not None:
        return rows.name(label), []
    if len(rows.names) < 2:
        raise BadData(f"{rows.source} has one column: a text and a label are needed")
    lower = {name.strip().lower(): name for name in rows.names}
    guess = next((lower[name] for name in LABELS if name in lower), None) or next(iter(rows.classes), None)
    if guess is None:
        guess = min(rows.names, key=lambda name: _unlike_labels(rows.table[name]))
        if _unlike_labels(rows.table[guess])[0]:
            raise BadData(f"{rows.source}: none of {', '.join(rows.names)} looks like labels; pass label=…")
    return guess, [_said("label", guess)]


def find_translation(rows: Rows, source: Column, target: Column) -> tuple[str, str, list[str]]:
    """The columns to translate from and to, and what was guessed.

    >>> from headcount.tasks.data import Rows
    >>> find_translation(Rows({"en": ["a dog"], "fr": ["un chien"]}), None, "fr")
    ('en', 'fr', ["source: column 'en'"])
    """
    if len(rows.names) < 2:
        raise BadData(
            f"{rows.source} has one column: a source and a target are needed; "
            "pass the aligned target file as target_data=…"
        )
    chosen = [None if column is None else rows.name(column) for column in (source, target)]
    remarks = []
    lower = {name.strip().lower(): name for name in rows.names}
    for side, (what, known) in enumerate((("source", SOURCES), ("target", TARGETS))):
        if chosen[side] is None:
            free = [n for n in rows.names if n not in chosen and _is_text(rows.table[n])]
            if not free:
                raise BadData(f"{rows.source}: no column for the {what} among {', '.join(rows.names)}")
            guess = next((lower[name] for name in known if lower.get(name) in free), free[0])
            chosen[side] = guess
            if set(rows.names) != {"source", "target"}:
                remarks.append(_said(what, guess))
    return str(chosen[0]), str(chosen[1]), remarks


def _said(what: str, *names: str) -> str:
    return f"{what}: column{'s' * (len(names) > 1)} {' and '.join(map(repr, names))}"


def _is_text(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _unlike_labels(values: list[Any]) -> tuple[bool, bool, int]:
    """How little a column looks like labels: few different short values, none empty, best whole numbers."""
    different = set(map(str, values))
    impossible = "" in different or max(map(len, different), default=99) > 30
    impossible = impossible or len(different) > max(10, len(values) / 4)
    return impossible, not all(value.lstrip("-").isdigit() for value in different), len(different)
