"""What all charts share: a drawing as wide as a phone (360 units), axes with round numbers, and marks that speak.

A mark carries its numbers as a `<title>`, which a browser shows by itself; the page's script turns it into something
that touch and keyboard reach as well. Colours are classes, so that the page decides them for light, dark and paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from headcount.report.markup import Markup, join, tag

WIDTH = 360.0


def drawing(height: float, *content: object, label: str, columns: int | None = None) -> Markup:
    """The picture itself; `columns`: how many marks the up and down keys skip."""
    return tag(
        "svg",
        *content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        role="group",
        class_="chart",
        aria_label=label,
        data_columns=columns,
    )


def mark(shape: str, lines: Sequence[str], class_: str = "", head: object = None, **attributes: object) -> Markup:
    """A shape that stands for something: `lines` say what, the first is its name."""
    classes = f"mark {class_}".strip()
    return tag(shape, tag("title", "\n".join(lines)), class_=classes, data_head=head, **attributes)


def words(x: float, y: float, content: object, anchor: str = "start", class_: str | None = None) -> Markup:
    return tag("text", content, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=class_)


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers from low to high.

    >>> ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> ticks(0.813, 0.881)
    [0.82, 0.84, 0.86, 0.88]
    """
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if step >= rough * 0.85)
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(place * step, digits) + 0.0 for place in range(first, last + 1)]


def powers(low: float, high: float) -> list[float]:
    """Powers of ten between two numbers; ordinary round numbers where there are too few.

    >>> powers(8.0, 20000.0)
    [10.0, 100.0, 1000.0, 10000.0]
    """
    found = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    return found[:: 1 + len(found) // 8] if len(found) > 1 else ticks(low, high)


def spread(values: Sequence[float], room: float = 0.06, least: float = 1e-9) -> tuple[float, float]:
    """A range that holds all values, with a little room; never empty.

    >>> spread([1.0, 2.0], room=0.5)
    (0.5, 2.5)
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    more = room * (high - low) if high - low > least else max(abs(high), 1.0) * 0.05
    return low - more, high + more


@dataclass(frozen=True)
class Axes:
    """A frame with two scales: `x` and `y` turn values into places."""

    xs: tuple[float, float]
    ys: tuple[float, float]
    height: float = 232.0
    left: float = 54.0
    right: float = 10.0
    top: float = 10.0
    bottom: float = 38.0
    log: bool = False  # of y: for perplexities, which grow by powers of ten

    def x(self, value: float) -> float:
        return self.left + (WIDTH - self.left - self.right) * (value - self.xs[0]) / (self.xs[1] - self.xs[0])

    def y(self, value: float) -> float:
        low, high, at = (math.log10(end) if self.log else end for end in (*self.ys, value))
        return self.height - self.bottom - (self.height - self.top - self.bottom) * (at - low) / (high - low)

    def frame(self, across: str, up: str, x_percent: bool = False, y_percent: bool = False) -> Markup:
        """Grid lines, numbers and names of both axes."""
        end, base = WIDTH - self.right, self.height - self.bottom
        xs, ys = ticks(*self.xs), powers(*self.ys) if self.log else ticks(*self.ys)
        return join(
            *(tag("line", class_="grid", x1=self.left, x2=end, y1=self.y(value), y2=self.y(value)) for value in ys),
            *(words(self.left - 5, self.y(v) + 3.5, w, "end") for v, w in zip(ys, labels(ys, y_percent), strict=True)),
            tag("line", class_="axis", x1=self.left, x2=end, y1=base, y2=base),
            *(words(self.x(v), base + 14, w, "middle") for v, w in zip(xs, labels(xs, x_percent), strict=True)),
            words((self.left + end) / 2, self.height - 6, across, "middle", "name"),
            tag(
                *("text", up),
                class_="name",
                text_anchor="middle",
                transform=f"translate(10 {(self.top + base) / 2:g}) rotate(-90)",
            ),
        )


def labels(values: Sequence[float], percent: bool = False) -> list[str]:
    """Tick labels with as many digits as their distance needs.

    >>> labels([0.0, 0.05]), labels([0.0, 0.2], percent=True)
    (['0.00', '0.05'], ['0%', '20%'])
    """
    step = min((b - a for a, b in pairwise(values)), default=1.0) * (100 if percent else 1)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [(f"{v:.{digits}%}" if percent else f"{v:.{digits}f}").replace("-", "\u2212") for v in values]


def legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """Names beside their colours, below a chart: `(class, name)`."""
    key = [
        tag(
            "li",
            tag("svg", tag("rect", width=14, height=10, rx=2), viewBox="0 0 14 10", class_=f"key {colour}"),
            name,
        )
        for colour, name in entries
    ]
    return tag("ul", *key, class_="legend")


def figure(title: str, *content: object, note: object = None) -> Markup:
    """A chart with its title above and a note below."""
    caption = tag("figcaption", tag("strong", title), tag("span", note, class_="note") if note else None)
    return tag("figure", caption, *content)
