"""Values with their intervals, one row each: speed at every batch size, layers with a single head left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headcount.report.chart import WIDTH, Axes, drawing, labels, mark, spread, ticks, words
from headcount.report.markup import Markup, join, tag

ROW = 20.0


@dataclass(frozen=True)
class Range:
    """A row: its name, its value with the interval, another value that limits it, and what it says."""

    name: str
    value: float
    low: float | None
    high: float | None
    tip: Sequence[str]
    limit: float | None = None
    colour: str = "c0"


def range_chart(
    rows: Sequence[Range],
    across: str,
    label: str,
    zero: float,
    percent: bool = False,
    beside: Sequence[Range] = (),
) -> Markup:
    """Dots with whiskers along one axis, a line at `zero` (no change), and a tick at each row's limit.

    beside: rows of charts that stand next to this one, and shall have the same scale.
    """
    shown = [*rows, *beside]
    seen = [value for row in shown for value in (row.value, row.low, row.high, row.limit) if value is not None]
    left = 12 + 5.6 * max((len(row.name) for row in rows), default=0)
    height = ROW * len(rows) + 46
    axes = Axes(spread([*seen, zero]), (0.0, 1.0), height=height, left=min(left, 150.0), top=6)
    base = height - axes.bottom
    at = ticks(*axes.xs)
    return drawing(
        height,
        *(tag("line", class_="grid", x1=axes.x(v), x2=axes.x(v), y1=axes.top, y2=base) for v in at),
        tag("line", class_="axis", x1=axes.x(zero), x2=axes.x(zero), y1=axes.top, y2=base),
        *(words(axes.x(v), base + 14, w, "middle") for v, w in zip(at, labels(at, percent), strict=True)),
        words((axes.left + WIDTH - axes.right) / 2, height - 6, across, "middle", "name"),
        *(_row(axes, row, axes.top + ROW * (place + 0.5)) for place, row in enumerate(rows)),
        label=label,
        columns=1,
    )


def _row(axes: Axes, row: Range, y: float) -> Markup:
    drawn = [words(axes.left - 8, y + 3.5, row.name, "end")]
    if row.limit is not None:
        drawn.append(tag("line", class_="limit", x1=axes.x(row.limit), x2=axes.x(row.limit), y1=y - 7, y2=y + 7))
    if row.low is not None and row.high is not None:
        ends = {"x1": axes.x(row.low), "x2": axes.x(row.high)}
        drawn.append(tag("line", class_=f"whisker {row.colour}", **ends, y1=y, y2=y))
    return join(*drawn, mark("circle", row.tip, f"dot {row.colour}", cx=axes.x(row.value), cy=y, r=4))
