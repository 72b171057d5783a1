"""One base error, so that a caller can catch everything headcount refuses; unknown names get suggestions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HeadcountError(Exception):
    """Something headcount will not do; the message says what was given, what is possible and what to do."""


class UnsupportedModel(HeadcountError):
    """A model whose attention heads headcount cannot find or safely remove."""


class BadData(HeadcountError):
    """Data that would give an error later, or a silently wrong number."""


class BadCheckpoint(HeadcountError):
    """A model directory that is incomplete, damaged or unsafe to load."""


class RunConflict(HeadcountError):
    """A run directory that belongs to another command, or is in use."""


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Say that a name is not known, what was probably meant, and what there is.

    >>> unknown("method", "gradeint", ["gradient", "oracle"])
    "unknown method 'gradeint'; did you mean 'gradient'? Available: gradient, oracle"
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    return f"unknown {what} {name!r}{hint} Available: {', '.join(names)}"
