"""How the page shows results: figures as small SVG files, tables in Markdown, numbers in points of a run's metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headcount.reporting import WIDTH, Axes, Markup, drawing, join, padded_range, scatter_svg, standalone, tag, text_at

ROW = 14.0  # height of a row of the legend
NAMES = {"bleu": "BLEU", "matthews": "Matthews", "f1": "F1"}


@dataclass(frozen=True)
class Line:
    """A curve: `(x, y)` from left to right."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0
    dashed: bool = False


def curves(lines: Sequence[Line], up: str, across: str = "heads pruned", y_percent: bool = False) -> str:
    """Curves over the share of pruned heads."""
    shown = [[(x, y) for x, y in line.points if np.isfinite(y)] for line in lines]
    top = 8.0 + ROW * -(-len(lines) // 2)
    axes = Axes(
        (0.0, 1.0), padded_range([0.0, *(y for some in shown for _, y in some)], 0.04), 222.0 + top, top=top, right=18
    )
    drawn = [axes.frame(across, up, x_percent=True, y_percent=y_percent)]
    for place, (line, some) in enumerate(zip(lines, shown, strict=True)):
        style = {"class_": f"line c{line.colour}", "stroke_dasharray": "5 4" if line.dashed else None}
        drawn.append(
            tag("polyline", points=" ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in some), fill="none", **style)
        )
        x, y = 48 + 156 * (place % 2), 10 + ROW * (place // 2)
        drawn.append(join(tag("line", x1=x, x2=x + 18, y1=y - 3, y2=y - 3, **style), text_at(x + 23, y, line.name)))
    return standalone(drawing(axes.height, *drawn, label=f"{up} against {across}"))


def histogram(values: Sequence[float], across: str, bins: int = 21) -> str:
    """How many heads change the score by how much (M19 figure 1)."""
    counts, edges = np.histogram(values, bins=bins)
    axes = Axes((float(edges[0]), float(edges[-1])), (0.0, float(counts.max()) * 1.06))
    bars = [_bar(axes, *edges[place : place + 2], count) for place, count in enumerate(counts) if count]
    zero = axes.x(0.0) if edges[0] <= 0 <= edges[-1] else None
    ruler = None if zero is None else tag("line", class_="ruler", x1=zero, x2=zero, y1=10, y2=194)
    return standalone(drawing(axes.height, axes.frame(across, "heads"), *bars, ruler, label=f"heads by {across}"))


def _bar(axes: Axes, left: float, right: float, count: int) -> Markup:
    x, y = axes.x(float(left)), axes.y(float(count))
    width = min(axes.x(float(right)), WIDTH - axes.right) - x
    return tag("rect", class_="c0", x=x + 0.5, y=y, width=max(width - 1, 0.5), height=axes.y(0.0) - y)


def scatter(dots: Sequence[tuple[str, float, float]], caption: str, run: Mapping[str, Any]) -> str:
    """The effect of each head in and out of domain (M19 figure 2)."""
    digits = 2 if run["points"] >= 1 else 4
    return scatter_svg(dots, "in domain", "out of domain", f"{caption}, {metric_name(run)}", digits)


def table(columns: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """
    >>> print(table(["a", "b"], [[1, "x"]]))
    | a | b |
    |-|-|
    | 1 | x |
    """
    text = ["| " + " | ".join(str(cell) for cell in line) + " |" for line in (columns, *rows)]
    return "\n".join([text[0], "|" + "-|" * len(columns), *text[1:]])


def file_name(experiment: str) -> str:
    return experiment.lower().replace(" ", "-")


def metric_name(run: Mapping[str, Any]) -> str:
    return NAMES.get(run["metric"], run["metric"])


def in_points(value: float, run: Mapping[str, Any]) -> float:
    """A change in points of the run's metric: hundredths of accuracy, BLEU as it is, percent of a perplexity.

    >>> in_points(0.5, {"points": 1.0, "relative": False})
    0.5
    >>> in_points(0.5, {"points": 0.01, "relative": True, "base": 4})
    12.5
    """
    return value / (run["points"] * (run["base"] if run["relative"] else 1))


def points(value: float, run: Mapping[str, Any]) -> str:
    """
    >>> points(-0.0156, {"points": 0.01, "relative": False})
    '-1.56'
    """
    return f"{in_points(value, run):+.2f}"


def gain(change: float, run: Mapping[str, Any]) -> float:
    """A change, positive if it is for the better."""
    return change if run["higher_is_better"] else -change


def score(value: float, run: Mapping[str, Any]) -> str:
    return f"{value:.{2 if run['points'] >= 1 else 3}f}"


def percent(value: float) -> str:
    return f"{value:.0%}"
