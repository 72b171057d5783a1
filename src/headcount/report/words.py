"""How numbers are written in the report: the digits, signs and units that people expect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headcount.report.runs import number

# As `headcount.tasks.metrics` has them; written out here so that a report needs no torch.
LOWER_IS_BETTER = {"loss", "perplexity"}
HUNDREDS = {"bleu", "chrf"}
RELATIVE = {"loss", "perplexity"}
NAMES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "f1": "F1",
    "f1_macro": "macro F1",
    "matthews": "Matthews",
    "exact_match": "exact match",
}
MINUS, NOTHING = "\u2212", "\u2013"


def metric_name(metric: str | None) -> str:
    return NAMES.get(metric or "", metric or "score")


def capital(text: str) -> str:
    """
    >>> capital("accuracy of BLEU"), capital("")
    ('Accuracy of BLEU', '')
    """
    return f"{text[:1].upper()}{text[1:]}"


def score(value: Any, metric: str | None = None) -> str:
    """A score: 0.8796 for accuracy, 51.02 for BLEU.

    >>> score(0.87956), score(51.018, "bleu"), score(None)
    ('0.8796', '51.02', '–')
    """
    found = number(value)
    return NOTHING if found is None else f"{found:.{2 if metric in HUNDREDS else 4}f}".replace("-", MINUS)


def change(value: Any, metric: str | None = None) -> str:
    """A difference, always with its sign.

    >>> change(0.01), change(-0.5, "bleu")
    ('+0.0100', '−0.50')
    """
    found = number(value)
    return NOTHING if found is None else f"{found:+.{2 if metric in HUNDREDS else 4}f}".replace("-", MINUS)


def interval(row: Any, metric: str | None = None, low: str = "low", high: str = "high", signed: bool = True) -> str:
    """The two ends of a 95% interval: `−0.0156 to +0.0052`; nothing if either is missing."""
    return ends(row, lambda end: (change if signed else score)(end, metric), low, high)


def ends(row: Any, write: Callable[[Any], str], low: str, high: str) -> str:
    """Two ends of a range, each as `write` has it.

    >>> ends({"low": 0.1, "high": 0.25}, share, "low", "high")
    '10% to 25%'
    """
    both = [row.get(low), row.get(high)]
    return NOTHING if None in map(number, both) else " to ".join(map(write, both))


def p_value(value: Any) -> str:
    """A p: 0.031, or < 0.001.

    >>> p_value(0.0312), p_value(1e-9)
    ('0.031', '< 0.001')
    """
    found = number(value)
    return NOTHING if found is None else "< 0.001" if found < 0.001 else f"{found:.2g}"


def share(value: Any, digits: int = 0) -> str:
    found = number(value)
    return NOTHING if found is None else f"{found:.{digits}%}".replace("-", MINUS)


def count(value: Any) -> str:
    found = number(value)
    return NOTHING if found is None else f"{found:,.0f}"


def short(value: Any) -> str:
    """A number of any size, with four digits that count."""
    found = number(value)
    return NOTHING if found is None else f"{found:.4g}".replace("-", MINUS)


def correlation(value: Any) -> str:
    """
    >>> correlation(-0.0119), correlation(0.95471)
    ('−0.01', '0.95')
    """
    found = number(value)
    return NOTHING if found is None else f"{found:.2f}".replace("-", MINUS)


def worse(value: float, metric: str | None) -> bool:
    """Whether a change of the metric is for the worse."""
    return value > 0 if metric in LOWER_IS_BETTER else value < 0


def point(metric: str | None) -> float:
    """What people call a point of the metric: a hundredth of accuracy, one of BLEU."""
    return 1.0 if metric in HUNDREDS else 0.01


def points(value: Any, metric: str | None) -> str:
    """A budget: `0.5 points`, `2 percent`.

    >>> points(1, "accuracy"), points(2.5, "loss")
    ('1 point', '2.5 percent')
    """
    found = number(value)
    unit = "percent" if metric in RELATIVE else "point" if found == 1 else "points"
    return NOTHING if found is None else f"{found:g} {unit}"
