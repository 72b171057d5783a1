"""One base error, so that a caller can catch everything headcount refuses; and words that messages share."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable

LONGEST = 1000  # characters of a message; what it quotes from a file may be of any length


class HeadcountError(Exception):
    """Something headcount will not do: what was given, what was expected, and what to do about it.

    >>> str(HeadcountError("no column of texts among a, b", advice="pass {text}"))
    'no column of texts among a, b; pass text=…'
    >>> HeadcountError("no column of texts among a, b", advice="pass {text}").in_words(lambda name: f"--{name}")
    'no column of texts among a, b; pass --text'

    advice: what to do, with the arguments to change in braces. In Python they read `text=…`; the command line writes
        its own options in their place.

    The text is one printable line, whatever the file holds that it quotes: nothing in it can move a cursor.

    >>> str(HeadcountError("no column 'a\\x1b[2J\\nb'"))
    "no column 'a\\\\x1b[2J\\\\nb'"
    """

    def __init__(self, message: object = "", advice: str = "") -> None:
        super().__init__(*([str(message), advice] if advice else [str(message)]))
        self.message, self.advice = _one_line(str(message)), _one_line(advice)

    def in_words(self, written: Callable[[str], str]) -> str:
        """The whole sentence; `written` says how the caller writes an argument."""
        advice = re.sub(r"\{(\w+)\}", lambda found: written(found[1]), self.advice)
        return f"{self.message}; {advice}" if advice else self.message

    def __str__(self) -> str:
        return self.in_words(lambda name: f"{name}=…")


class UnsupportedModel(HeadcountError):
    """A model whose attention heads headcount cannot find or safely remove."""


class BadData(HeadcountError):
    """Data that would give an error later, or a silently wrong number."""


class BadCheckpoint(HeadcountError):
    """A model directory that is incomplete, damaged or unsafe to load."""


class RunConflict(HeadcountError):
    """A run directory that belongs to another command, or is in use."""


def _one_line(text: str) -> str:
    shown = text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST // 2]} … {shown[-LONGEST // 3 :]}"


def first_line(error: BaseException) -> str:
    """The first line of what another library's error says; its name, if it says nothing.

    >>> first_line(ValueError("not so\\nmore")), first_line(AssertionError())
    ('not so', 'AssertionError')
    """
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def counted(number: float, what: str) -> str:
    """A number with its noun, in the plural unless there is one.

    >>> counted(1, "example"), counted(1200, "head"), counted(0.5, "point"), counted(1.0, "point")
    ('1 example', '1,200 heads', '0.5 points', '1 point')
    """
    written = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{written} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(1.2), duration(42.3), duration(600), duration(9000)
    ('1 second', '42 seconds', '10 minutes', '2.5 hours')
    """
    if seconds < 100:
        return counted(round(seconds), "second")
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.1f} hours"


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Say that a name is not known, what was probably meant, and what there is.

    >>> unknown("method", "gradeint", ["gradient", "oracle"])
    "unknown method 'gradeint'; did you mean 'gradient'? Available: gradient, oracle"
    """
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"unknown {what} {name!r}{hint} Available: {', '.join(names)}"
