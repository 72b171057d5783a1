"""Numbers and tables as the results page writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

HUNDREDS = ("bleu", "chrf")
NAMES = {"bleu": "BLEU", "matthews": "Matthews", "f1": "F1"}


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """
    >>> print(table(["a", "b"], [[1, "x"]]))
    | a | b |
    |-|-|
    | 1 | x |
    """
    lines = [columns, *rows]
    text = ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]
    return "\n".join([text[0], "|" + "-|" * len(columns), *text[1:]])


def metric_name(metric: str) -> str:
    return NAMES.get(metric, metric)


def points(value: float, metric: str) -> str:
    """A change in points: hundredths of accuracy, BLEU as it is.

    >>> points(-0.0156, "accuracy"), points(0.5, "bleu")
    ('-1.56', '+0.50')
    """
    return f"{value * (1 if metric in HUNDREDS else 100):+.2f}"


def score(value: float, metric: str) -> str:
    return f"{value:.2f}" if metric in HUNDREDS else f"{value:.3f}"


def percent(value: float) -> str:
    return f"{value:.0%}"
