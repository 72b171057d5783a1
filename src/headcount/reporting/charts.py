"""Charts drawn as SVG: lines with bands, values with intervals, bars, scatters.

A mark carries its numbers as a `<title>`, which a browser shows by itself; the page's script makes them reachable by
touch and keyboard as well. Colours are classes, so that the page can set them for light, dark and paper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from headcount.reporting.markup import Markup, asset, charting, join, legend, tag
from headcount.reporting.numbers import MINUS, write

WIDTH = 360.0  # of every drawing: about a phone
ROW = 20.0  # height of a row in `interval_chart` and `bar_chart`
LETTER = 5.6  # about the width of one
SCATTER_HEIGHT = 320.0
COLOURS = ("c0", "c1", "c2", "c3", "c4", "c5")  # of lines and parts, in their order
MANY_DOTS = 30  # on a line; more would hide it if they were drawn large

# ------------------------------------------------------------------------------------------------ what all charts share


def drawing(height: float, *content: object, label: str, columns: int | None = None) -> Markup:
    """The picture itself; `columns` is how many marks the up and down keys skip."""
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
    """A shape that stands for something: the first line is its name, the others its numbers."""
    classes = f"mark {class_}".strip()
    return tag(shape, tag("title", "\n".join(lines)), class_=classes, data_head=head, **attributes)


def text_at(x: float, y: float, content: object, anchor: str = "start", class_: str | None = None) -> Markup:
    return tag("text", content, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=class_)


def standalone(chart: str) -> str:
    """A chart as an SVG file: with its colours, on white."""
    opening, _, rest = chart.partition(">")
    style = asset("charts.css").replace("]]>", "")
    background = '<rect width="100%" height="100%" fill="#fff"/>'
    return f'{opening} width="540" font-family="system-ui, sans-serif"><style>{style}</style>{background}{rest}\n'


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


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten between two numbers; ordinary round numbers where there are fewer than two.

    >>> log_ticks(8.0, 20000.0)
    [10.0, 100.0, 1000.0, 10000.0]
    """
    found = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    return found[:: 1 + len(found) // 8] if len(found) > 1 else ticks(low, high)


def tick_labels(values: Sequence[float], percent: bool = False) -> list[str]:
    """Tick labels with as many digits as the step between them needs.

    >>> tick_labels([0.0, 0.05]), tick_labels([0.0, 0.2], percent=True)
    (['0.00', '0.05'], ['0%', '20%'])
    """
    step = min((b - a for a, b in pairwise(values)), default=1.0) * (100 if percent else 1)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{v:.{digits}{'%' if percent else 'f'}}".replace("-", MINUS) for v in values]


def padded_range(values: Sequence[float], padding: float = 0.06, least: float = 1e-9) -> tuple[float, float]:
    """A range that holds all values with some room at both ends; never empty.

    >>> padded_range([1.0, 2.0], padding=0.5)
    (0.5, 2.5)
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    more = padding * (high - low) if high - low > least else max(abs(high), 1.0) * 0.05
    return low - more, high + more


@dataclass(frozen=True)
class Axes:
    """A frame with two scales: `x` and `y` turn values into coordinates."""

    xs: tuple[float, float]
    ys: tuple[float, float]
    height: float = 232.0
    left: float = 54.0
    right: float = 10.0
    top: float = 10.0
    bottom: float = 38.0
    log: bool = False  # of y

    def x(self, value: float) -> float:
        return self.left + (WIDTH - self.left - self.right) * (value - self.xs[0]) / (self.xs[1] - self.xs[0])

    def y(self, value: float) -> float:
        low, high, at = (math.log10(end) if self.log else end for end in (*self.ys, value))
        return self.height - self.bottom - (self.height - self.top - self.bottom) * (at - low) / (high - low)

    def frame(self, across: str, up: str, x_percent: bool = False, y_percent: bool = False) -> Markup:
        """Grid lines, numbers and names of both axes."""
        end, base = WIDTH - self.right, self.height - self.bottom
        ys = log_ticks(*self.ys) if self.log else ticks(*self.ys)
        y_labels = zip(ys, tick_labels(ys, y_percent), strict=True)
        return join(
            *(tag("line", class_="grid", x1=self.left, x2=end, y1=self.y(value), y2=self.y(value)) for value in ys),
            *(text_at(self.left - 5, self.y(value) + 3.5, label, "end") for value, label in y_labels),
            tag("line", class_="axis", x1=self.left, x2=end, y1=base, y2=base),
            self.x_labels(across, x_percent),
            tag(
                *("text", up),
                class_="name",
                text_anchor="middle",
                transform=f"translate(10 {(self.top + base) / 2:g}) rotate(-90)",
            ),
        )

    def x_labels(self, across: str, percent: bool) -> Markup:
        """Numbers and name of the x axis."""
        xs = ticks(*self.xs)
        labels = zip(xs, tick_labels(xs, percent), strict=True)
        base = self.height - self.bottom
        return join(
            *(text_at(self.x(value), base + 14, label, "middle") for value, label in labels),
            text_at((self.left + WIDTH - self.right) / 2, self.height - 6, across, "middle", "name"),
        )


# ---------------------------------------------------------------------------------------------------------------- lines


@dataclass(frozen=True)
class Dot:
    """A point of a line with its interval; `tip` is what its mark says."""

    x: float
    y: float
    low: float | None
    high: float | None
    tip: Sequence[str]
    chosen: bool = False


@dataclass(frozen=True)
class Series:
    """A line: its name, the class of its colour, its points from left to right."""

    name: str
    colour: str
    dots: Sequence[Dot] = field(repr=False)


@charting
def line_chart(
    series: Sequence[Series],
    across: str,
    up: str,
    label: str,
    *,
    x_percent: bool = False,
    y_percent: bool = False,
    bands: bool = True,
    level: tuple[float, str] | None = None,
    at: tuple[float, str] | None = None,
    whole: bool = False,
    may_be_log: bool = False,
) -> Markup:
    """Lines with their intervals as bands.

    level, at: a horizontal and a vertical line, each with its name. whole: the x axis runs from 0 to 1 whatever the
    points are. may_be_log: the y axis is logarithmic if the largest value is more than 50 times the smallest, for
    metrics without an upper bound such as perplexity.
    """
    xs, ys, log = line_ranges(series, level, at, whole, may_be_log)
    axes = Axes(xs, ys, log=log)
    drawn: list[Markup | None] = [axes.frame(across, up, x_percent, y_percent)]
    names = []  # on top of everything else
    if at:
        place = axes.x(at[0])
        anchor = "end" if at[0] > sum(xs) / 2 else "start"
        drawn.append(tag("line", class_="ruler", x1=place, x2=place, y1=axes.top, y2=axes.height - axes.bottom))
        names.append(text_at(place + (-4 if anchor == "end" else 4), axes.top + 9, at[1], anchor, "ruled"))
    if level:
        place = axes.y(level[0])
        drawn.append(tag("line", class_="ruler", x1=axes.left, x2=WIDTH - axes.right, y1=place, y2=place))
        names.append(text_at(axes.left + 4, place + 11, level[1], class_="ruled"))
    if bands:
        drawn += [_band(axes, one) for one in series]
    drawn += [_line(axes, one) for one in series]
    key = legend([(one.colour, one.name) for one in series]) if len(series) > 1 else None
    return join(drawing(axes.height, *drawn, *names, label=label), key)


def line_ranges(
    series: Sequence[Series],
    level: tuple[float, str] | None,
    at: tuple[float, str] | None,
    whole: bool,
    may_be_log: bool,
) -> tuple[tuple[float, float], tuple[float, float], bool]:
    """The ranges of both axes of a line chart, and whether y is logarithmic."""
    dots = [dot for one in series for dot in one.dots]
    ends = [value for dot in dots for value in (dot.y, dot.low, dot.high) if value is not None]
    ends += [level[0]] if level else []
    log = may_be_log and bool(ends) and 0 < 50 * min(ends) < max(ends)
    ys = (0.9 * min(ends), 1.1 * max(ends)) if log else padded_range(ends)
    xs = (0.0, 1.0) if whole else padded_range([dot.x for dot in dots] + ([at[0]] if at else []), padding=0.03)
    return xs, ys, log


def _band(axes: Axes, one: Series) -> Markup | None:
    known = [(axes.x(d.x), axes.y(d.low), axes.y(d.high)) for d in one.dots if d.low is not None and d.high is not None]
    if len(known) < 2:
        return join(*(tag("line", class_=f"whisker {one.colour}", x1=x, x2=x, y1=y, y2=z) for x, y, z in known))
    around = [(x, high) for x, _, high in known] + [(x, low) for x, low, _ in reversed(known)]
    return tag("polygon", class_=f"band {one.colour}", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in around))


def _line(axes: Axes, one: Series) -> Markup:
    places = [(axes.x(dot.x), axes.y(dot.y), dot) for dot in one.dots]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
    rings = [tag("circle", class_="chosen", cx=x, cy=y, r=7) for x, y, dot in places if dot.chosen]
    radius = 3 if len(places) <= MANY_DOTS else 1.5
    marks = [mark("circle", dot.tip, f"dot {one.colour}", cx=x, cy=y, r=radius) for x, y, dot in places]
    return join(tag("polyline", class_=f"line {one.colour}", points=path), *rings, *marks)


# ------------------------------------------------------------------------------------------------ values with intervals


@dataclass(frozen=True)
class Estimate:
    """A row of an interval chart: a value with its interval, and an upper limit it can be compared with."""

    name: str
    value: float
    low: float | None
    high: float | None
    tip: Sequence[str]
    limit: float | None = None
    colour: str = "c0"


@charting
def interval_chart(
    rows: Sequence[Estimate], across: str, label: str, zero: float, same_scale_as: Sequence[Estimate] = ()
) -> Markup:
    """One row per value: a dot with its interval, a tick at its limit, and a line at `zero`, where nothing changed.

    same_scale_as: rows of the charts beside this one, whose values its axis must hold, too.
    """
    shown = [*rows, *same_scale_as]
    seen = [value for row in shown for value in (row.value, row.low, row.high, row.limit) if value is not None]
    left = 12 + LETTER * max((len(row.name) for row in rows), default=0)
    height = ROW * len(rows) + 46
    axes = Axes(padded_range([*seen, zero]), (0.0, 1.0), height=height, left=min(left, 150.0), top=6)
    base = height - axes.bottom
    return drawing(
        height,
        *(tag("line", class_="grid", x1=axes.x(v), x2=axes.x(v), y1=axes.top, y2=base) for v in ticks(*axes.xs)),
        tag("line", class_="axis", x1=axes.x(zero), x2=axes.x(zero), y1=axes.top, y2=base),
        axes.x_labels(across, percent=False),
        *(_estimate(axes, row, axes.top + ROW * (place + 0.5)) for place, row in enumerate(rows)),
        label=label,
        columns=1,
    )


def _estimate(axes: Axes, row: Estimate, y: float) -> Markup:
    drawn = [text_at(axes.left - 8, y + 3.5, row.name, "end")]
    if row.limit is not None:
        drawn.append(tag("line", class_="limit", x1=axes.x(row.limit), x2=axes.x(row.limit), y1=y - 7, y2=y + 7))
    if row.low is not None and row.high is not None:
        ends = {"x1": axes.x(row.low), "x2": axes.x(row.high)}
        drawn.append(tag("line", class_=f"whisker {row.colour}", **ends, y1=y, y2=y))
    return join(*drawn, mark("circle", row.tip, f"dot {row.colour}", cx=axes.x(row.value), cy=y, r=4))


# ----------------------------------------------------------------------------------------------------------------- bars


@dataclass(frozen=True)
class Bar:
    """A row of a bar chart: how much of a whole, in words beside it, and what its mark says."""

    name: str
    value: float
    whole: float
    words: str
    tip: Sequence[str]
    colour: str = "kept"


@charting
def bar_chart(rows: Sequence[Bar], label: str) -> Markup:
    """One row per bar: an outline as long as its whole, filled as far as its value."""
    left = 12 + LETTER * max((len(row.name) for row in rows), default=0)
    right = 12 + LETTER * max((len(row.words) for row in rows), default=0)
    unit = (WIDTH - left - right) / max((row.whole for row in rows if row.whole > 0), default=1.0)
    drawn = []
    for place, row in enumerate(rows):
        y, whole, filled = 4 + ROW * place, unit * max(row.whole, 0.0), unit * min(max(row.value, 0.0), row.whole)
        box = {"x": left, "y": y, "height": ROW - 5, "rx": 2}
        drawn += [
            text_at(left - 6, y + 11, row.name, "end"),
            tag("rect", class_=f"{row.colour} fill", **box, width=filled),
            mark("rect", row.tip, "whole", **box, width=whole),
            text_at(left + whole + 6, y + 11, row.words),
        ]
    return drawing(ROW * len(rows) + 6, *drawn, label=label, columns=1)


# ------------------------------------------------------------------------------------------------------------- scatters


Points = Sequence[tuple[str, float, float]]


@charting
def scatter_chart(points: Points, across: str, up: str, caption: str = "", digits: int = 4) -> Markup:
    """Two effects per head (M19 figure 2): points `(name, x, y)`, both zero lines, and the line of equal effects."""
    both = padded_range([0.0, *(x for _, x, _ in points), *(y for _, _, y in points)])
    axes = Axes(both, both, height=SCATTER_HEIGHT, top=26.0 if caption else 10.0)
    left, right, top, base = axes.left, WIDTH - axes.right, axes.top, axes.height - axes.bottom
    zero_x, zero_y = axes.x(0.0), axes.y(0.0)

    def dot(name: str, x: float, y: float) -> Markup:
        tip = [name, f"{across}: {write(x, f'+.{digits}f')}", f"{up}: {write(y, f'+.{digits}f')}"]
        return mark("circle", tip, "point c0", name, cx=axes.x(x), cy=axes.y(y), r=4)

    return drawing(
        axes.height,
        axes.frame(across, up),
        tag("line", class_="axis", x1=left, x2=right, y1=zero_y, y2=zero_y),
        tag("line", class_="axis", x1=zero_x, x2=zero_x, y1=top, y2=base),
        tag("line", class_="ruler", x1=left, x2=right, y1=base, y2=top),
        text_at(WIDTH / 2, 15, caption, "middle", "name") if caption else None,
        *(dot(*point) for point in points),
        label=f"{up} against {across}",
    )


def scatter_svg(points: Points, across: str, up: str, caption: str = "", digits: int = 4) -> str:
    """The effects of heads on two data sets as an SVG file; pointing at a head shows its name and values.

    >>> picture = scatter_svg([("encoder.0.1", -0.01, -0.02)], "in domain", "out of domain")
    >>> picture.startswith("<svg"), "encoder.0.1" in picture
    (True, True)

    points: `(head, change on the first data, change on the second)`. across, up: names of the two data sets.
    digits: decimals of the changes.
    """
    return standalone(scatter_chart(points, f"change, {across}", f"change, {up}", caption, digits))
