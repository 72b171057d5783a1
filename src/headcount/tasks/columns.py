"""Which column holds what: guessed from common names, otherwise from what the columns hold; each guess is a remark."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from headcount.errors import BadData

if TYPE_CHECKING:
    from headcount.tasks.rows import Rows

PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("text1", "text2"),
    ("#1 string", "#2 string"),
    ("query", "document"),
    ("query", "passage"),
    ("anchor", "positive"),
)
TEXTS = ("text", "sentence", "review", "content", "document", "comment", "tweet", "title", "question")
LABELS = ("label", "labels", "quality", "class", "target", "sentiment", "gold_label", "category")
SOURCES = ("source", "src", "input", "article", "document")
TARGETS = ("target", "tgt", "output", "reference", "summary", "highlights", "translation")
SCORES = ("score", "similarity", "similarity_score", "label", "labels", "rating", "stars")
WORDS = ("tokens", "words")
TAGS = ("tags", "ner_tags", "labels", "label", "pos_tags", "chunk_tags")
QUESTIONS, CONTEXTS, ANSWERS = ("question",), ("context", "passage", "paragraph"), ("answers", "answer", "text")
CHOICES = ("choices", "endings", "options")
CHOICE = r"(ending|choice|option|answer|sol)_?\d"  # a column for each choice
STEMS = ("context", "query", "question", "premise", "prompt", "text", "sentence", "sent1", "startphrase", "ctx", "goal")
RIGHT = ("label", "gold", "answerkey", "answer", "target", "correct")
IMAGES = ("image", "img", "file", "file_name", "filename", "path")
SOUNDS = ("audio", "sound", "file", "file_name", "filename", "path")
TRANSCRIPTS = ("transcript", "transcription", "text", "sentence", "target")
LANGUAGES = ("en", "de", "fr", "es", "it", "pt", "nl", "pl", "cs", "ro", "ru", "tr", "zh", "ja")
# Whatever a column may be called: a first line that has one of these names is a header.
KNOWN = {
    *TEXTS, *LABELS, *SOURCES, *TARGETS, *LANGUAGES, *(name for pair in PAIRS for name in pair), *SCORES, *WORDS, *TAGS,
    *QUESTIONS, *CONTEXTS, *ANSWERS, *CHOICES, *STEMS, *RIGHT, *IMAGES, *SOUNDS, *TRANSCRIPTS,
}  # fmt: skip

Column = str | int | None  # by name, by number (counted from 0), or left to a guess


def find_text(rows: Rows, text: Column, pair: Column, label: str | None = None) -> tuple[str, str | None, list[str]]:
    """The text column, the second text column if there is one, and remarks on what was guessed.

    >>> from headcount.tasks.rows import Rows
    >>> find_text(Rows({"premise": ["a"], "hypothesis": ["b"]}), None, None)[:2]
    ('premise', 'hypothesis')
    """
    if text is not None:
        chosen = rows.name(text)
        return chosen, None if pair is None else rows.name(pair), _left_out(rows, chosen) if pair is None else []
    lower = {name.strip().lower(): name for name in rows.names if name != label}
    if pair is None:
        for first, second in PAIRS:
            if first in lower and second in lower:
                return lower[first], lower[second], [_remark("texts", lower[first], lower[second])]
    second_name = None if pair is None else rows.name(pair)
    guess = next((lower[name] for name in TEXTS if name in lower and lower[name] != second_name), None)
    if guess is None:
        texts = [n for n in lower.values() if n != second_name and _is_text(rows.table[n])]
        if not texts:
            raise BadData(f"{rows.source}: no column of texts among {', '.join(rows.names)}", advice="pass {text}")
        guess = max(texts, key=lambda name: sum(len(value) for value in rows.table[name]))
    return guess, second_name, [] if len(rows.names) == 1 else [_remark("text", guess)]


def find_column(
    rows: Rows,
    given: Column,
    what: str,
    names: Sequence[str],
    fits: Callable[[Any], bool] = lambda value: True,
    apart: Collection[str] = (),
) -> tuple[str, list[str]]:
    """The column given, else the first of these names whose values fit, else the first that fits; and a remark.

    Most values are enough in a column of such a name, and without any other column, none: the task then says which
    row does not fit.

    >>> from headcount.tasks.rows import Rows
    >>> find_column(Rows({"a": ["x"], "b": [[1]]}), None, "label", ("tags",), lambda value: isinstance(value, list))
    ('b', ["label: column 'b'"])

    what: the argument that names the column. apart: columns that hold something else, and are not guessed again.
    """
    if given is not None:
        return rows.name(given), []
    lower = {name.strip().lower(): name for name in rows.names if name not in apart}
    named = [lower[name] for name in names if name in lower]
    share = {name: sum(1 for one in rows.table[name] if fits(one)) / max(1, len(rows)) for name in lower.values()}
    usual = [name for name in named if share[name] > 0.5]
    for name in [*usual, *(name for name in share if share[name] == 1), *named]:
        return name, [] if len(rows.names) == 1 else [_remark(what, name)]
    listed = ", ".join(rows.names)
    raise BadData(f"{rows.source}: no column has values that fit {what} ({listed})", advice=f"pass {{{what}}}")


def is_text(value: Any) -> bool:
    """Whether a value is a text."""
    return isinstance(value, str)


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, or a text that says one.

    >>> is_number("3.5"), is_number("nan"), is_number(None)
    (True, False, False)
    """
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def find_label(rows: Rows, label: Column) -> tuple[str, list[str]]:
    """The column of labels, and remarks on what was guessed.

    >>> from headcount.tasks.rows import Rows
    >>> find_label(Rows({"0": ["gj04"] * 4, "1": ["0", "1", "1", "0"], "2": ["", "*", "", ""]}), None)[0]
    '1'
    """
    if label is not None:
        return rows.name(label), []
    if len(rows.names) < 2:
        raise BadData(_only_one(rows, "expected a text and a label"))
    lower = {name.strip().lower(): name for name in rows.names}
    guess = next((lower[name] for name in LABELS if name in lower), None) or next(iter(rows.classes), None)
    if guess is None:
        guess = min(rows.names, key=lambda name: _unlike_labels(rows.table[name]))
        if _unlike_labels(rows.table[guess])[0]:
            raise BadData(f"{rows.source}: no column of labels among {', '.join(rows.names)}", advice="pass {label}")
    return guess, [_remark("label", guess)]


def find_translation(rows: Rows, source: Column, target: Column) -> tuple[str, str, list[str]]:
    """The columns to translate from and to, and remarks on what was guessed.

    >>> from headcount.tasks.rows import Rows
    >>> find_translation(Rows({"en": ["a dog"], "fr": ["un chien"]}), None, "fr")
    ('en', 'fr', ["source: column 'en'"])
    """
    if len(rows.names) < 2:
        raise BadData(
            _only_one(rows, "expected a source and a target"),
            advice="pass the line-aligned file of targets as {target_data}",
        )
    chosen = [None if column is None else rows.name(column) for column in (source, target)]
    remarks = []
    lower = {name.strip().lower(): name for name in rows.names}
    for side, (what, known) in enumerate((("source", SOURCES), ("target", TARGETS))):
        if chosen[side] is None:
            free = [n for n in rows.names if n not in chosen and _is_text(rows.table[n])]
            if not free:
                names = ", ".join(rows.names)
                raise BadData(f"{rows.source}: no column of texts for the {what} among {names}", f"pass {{{what}}}")
            guess = next((lower[name] for name in known if lower.get(name) in free), free[0])
            chosen[side] = guess
            if set(rows.names) != {"source", "target"}:
                remarks.append(_remark(what, guess))
    return str(chosen[0]), str(chosen[1]), remarks


def _only_one(rows: Rows, expected: str) -> str:
    """That there is one column, and what the file's reader remarked on it."""
    hints = [remark for remark in rows.remarks if "separated by" in remark]
    return ". ".join([f"{rows.source} has only one column; {expected}", *hints])


def _left_out(rows: Rows, text: str) -> list[str]:
    """A remark if the text is one of a usual pair, and the other one is there and not used."""
    lower = {name.strip().lower(): name for name in rows.names}
    for pair in PAIRS:
        if text.strip().lower() in pair and all(name in lower for name in pair):
            other = next(name for name in pair if name != text.strip().lower())
            return [f"only column {text!r} is read: {lower[other]!r} is left out, as no second text was named"]
    return []


def _remark(what: str, *names: str) -> str:
    return f"{what}: column{'s' * (len(names) > 1)} {' and '.join(map(repr, names))}"


def _is_text(values: list[Any]) -> bool:
    return all(map(is_text, values))


def _unlike_labels(values: list[Any]) -> tuple[bool, bool, int]:
    """The least for the likeliest column of labels: few distinct short values, none empty, ideally whole numbers."""
    distinct = set(map(str, values))
    impossible = "" in distinct or max(map(len, distinct), default=99) > 30
    impossible = impossible or len(distinct) > max(10, len(values) / 4)
    return impossible, not all(value.lstrip("-").isdigit() for value in distinct), len(distinct)


def has_choices(names: Collection[str]) -> bool:
    """Whether some of these columns are the choices of a question."""
    return any(name.strip().lower() in CHOICES or re.fullmatch(CHOICE, name.strip().lower()) for name in names)
