"""How the report writes numbers: digits, signs and units, and which direction of a metric is better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MINUS, MISSING = "\u2212", "\u2013"
DISPLAY_NAMES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "f1": "F1",
    "f1_macro": "macro F1",
    "matthews": "Matthews",
    "exact_match": "exact match",
}


def number(value: Any) -> float | None:
    """A number that can be drawn, or None.

    >>> number(1), number("1"), number(float("nan"))
    (1.0, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if abs(value) < 1e100 else None  # also false for nan
    except OverflowError:
        return None


def write(value: Any, spec: str) -> str:
    """A number in Python's format language with a real minus sign, or a dash if it is missing.

    >>> write(-0.0119, ".2f"), write(1234567, ",.0f"), write("many", ".1f")
    ('−0.01', '1,234,567', '–')
    """
    found = number(value)
    return MISSING if found is None else format(found, spec).replace("-", MINUS)


def share(value: Any, digits: int = 0) -> str:
    """A share as a percentage: 0.25 is `25%`."""
    return write(value, f".{digits}%")


def count(value: Any) -> str:
    """A whole number with thousands separators: `4,200`."""
    return write(value, ",.0f")


def units(value: Any, what: str) -> str:
    """A whole number with its noun: `1 head`, `4,200 examples`."""
    return f"{count(value)} {what}{'' if value == 1 else 's'}"


def short(value: Any) -> str:
    """A number of any size with four significant digits."""
    return write(value, ".4g")


def p_value(value: Any) -> str:
    """A p-value: 0.031, or < 0.001.

    >>> p_value(0.0312), p_value(1e-9)
    ('0.031', '< 0.001')
    """
    found = number(value)
    return "< 0.001" if found is not None and found < 0.001 else write(value, ".2g")


def interval(row: Mapping[str, Any], as_text: Callable[[Any], str], low: str = "low", high: str = "high") -> str:
    """The two ends of an interval, each as `as_text` writes it; a dash if either is missing.

    >>> interval({"low": 0.1, "high": 0.25}, share)
    '10% to 25%'
    """
    ends = [row.get(low), row.get(high)]
    return MISSING if None in map(number, ends) else " to ".join(map(as_text, ends))


@dataclass(frozen=True)
class MetricFormat:
    """A metric as a result describes it: how to write its scores, and which direction is better.

    >>> bleu = MetricFormat.of({"metric": "bleu", "higher_is_better": True, "points": 1.0, "relative": False})
    >>> bleu.name, bleu.score(51.018), bleu.change(-0.5), bleu.is_worse(-0.5)
    ('BLEU', '51.02', '−0.50', True)
    >>> loss = MetricFormat("loss", higher_is_better=False, relative=True)
    >>> loss.limit(2), loss.is_worse(-0.5), loss.allowed(2, base=3.0)
    ('rise ≤ 2%', False, 0.06)

    key: the name in the JSON. point: what people call one point (`points` in the JSON): 0.01 for accuracy, 1 for BLEU.
    relative: points are shares of the original model's score, as for perplexity.
    """

    key: str | None = None
    higher_is_better: bool = True
    point: float = 0.01
    relative: bool = False

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> MetricFormat:
        """What a result's JSON says of its metric; if it does not say, higher is better and points are absolute."""
        key, point = result.get("metric"), number(result.get("points"))
        return cls(
            key if isinstance(key, str) and key else None,
            result.get("higher_is_better") is not False,
            point if point is not None and point > 0 else cls.point,
            result.get("relative") is True,
        )

    @property
    def name(self) -> str:
        """The name as people write it: `BLEU`, `macro F1`."""
        return DISPLAY_NAMES.get(self.key or "", self.key or "score")

    @property
    def digits(self) -> int:
        """Decimals that matter: four for accuracy, two for BLEU."""
        return 2 if self.point >= 1 and not self.relative else 4

    def score(self, value: Any) -> str:
        """A score: 0.8796 for accuracy, 51.02 for BLEU."""
        return write(value, f".{self.digits}f")

    def change(self, value: Any) -> str:
        """A difference between scores, always with its sign."""
        return write(value, f"+.{self.digits}f")

    def change_interval(self, row: Mapping[str, Any], low: str = "low", high: str = "high") -> str:
        """The interval of a change: `−0.0156 to +0.0052`."""
        return interval(row, self.change, low, high)

    def score_interval(self, row: Mapping[str, Any]) -> str:
        """The interval of a score: `0.8610 to 0.8975`."""
        return interval(row, self.score)

    @property
    def sign(self) -> int:
        """1 if higher is better, else -1: what turns a change into an improvement."""
        return 1 if self.higher_is_better else -1

    def is_worse(self, change: float) -> bool:
        """Whether a change is for the worse."""
        return self.sign * change < 0

    def worst(self, changes: Mapping[Any, float]) -> Any:
        """The key whose change is the most harmful."""
        return min(changes, key=lambda key: self.sign * changes[key])

    def limit(self, points: Any) -> str:
        """The largest loss that was allowed: `drop ≤ 0.5 points`, `rise ≤ 2%` where lower is better."""
        unit = "%" if self.relative else " point" if number(points) == 1 else " points"
        return f"{'drop' if self.higher_is_better else 'rise'} \u2264 {write(points, 'g')}{unit}"

    def allowed(self, points: float, base: float | None) -> float:
        """The change that this many points of loss amount to, in the metric's own unit and direction."""
        return -self.sign * points * self.point * (abs(base) if self.relative and base else 1.0)
