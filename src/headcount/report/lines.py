"""Line charts: a value that changes step by step, with its 95% interval as a band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headcount.report.chart import WIDTH, Axes, drawing, legend, mark, spread, words
from headcount.report.markup import Markup, join, tag

MANY = 30  # points of a line that hide it if they are drawn large


@dataclass(frozen=True)
class Dot:
    """A point of a line, with its interval and what it says."""

    x: float
    y: float
    low: float | None
    high: float | None
    tip: Sequence[str]
    chosen: bool = False


@dataclass(frozen=True)
class Series:
    """A line: its name, its colour's class, its points from left to right."""

    name: str
    colour: str
    dots: Sequence[Dot] = field(repr=False)


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
    powers: bool = False,
) -> Markup:
    """Lines with their bands; `level` and `at` are a horizontal and a vertical line with a name.

    whole: the x axis goes from 0 to 1 whatever the points are. powers: where values grow without limit, as perplexities
    do, the y axis goes by powers of ten once the largest is more than 50 times the smallest.
    """
    dots = [dot for one in series for dot in one.dots]
    ends = [value for dot in dots for value in (dot.y, dot.low, dot.high) if value is not None]
    ends += [level[0]] if level else []
    log = powers and bool(ends) and 0 < 50 * min(ends) < max(ends)
    ys = (0.9 * min(ends), 1.1 * max(ends)) if log else spread(ends)
    xs = (0.0, 1.0) if whole else spread([dot.x for dot in dots] + ([at[0]] if at else []), room=0.03)
    axes = Axes(xs, ys, log=log)
    drawn: list[Markup | None] = [axes.frame(across, up, x_percent, y_percent)]
    named = []  # on top of everything else
    if at:
        place = axes.x(at[0])
        anchor = "end" if at[0] > sum(xs) / 2 else "start"
        drawn.append(tag("line", class_="ruler", x1=place, x2=place, y1=axes.top, y2=axes.height - axes.bottom))
        named.append(words(place + (-4 if anchor == "end" else 4), axes.top + 9, at[1], anchor, "ruled"))
    if level:
        place = axes.y(level[0])
        drawn.append(tag("line", class_="ruler", x1=axes.left, x2=WIDTH - axes.right, y1=place, y2=place))
        named.append(words(axes.left + 4, place + 11, level[1], class_="ruled"))
    if bands:
        drawn += [_band(axes, one) for one in series]
    drawn += [_line(axes, one) for one in series]
    key = legend([(one.colour, one.name) for one in series]) if len(series) > 1 else None
    return join(drawing(axes.height, *drawn, *named, label=label), key)


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
    radius = 3 if len(places) <= MANY else 1.5
    marks = [mark("circle", dot.tip, f"dot {one.colour}", cx=x, cy=y, r=radius) for x, y, dot in places]
    return join(tag("polyline", class_=f"line {one.colour}", points=path), *rings, *marks)
