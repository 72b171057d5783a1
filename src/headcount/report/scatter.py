"""A scatter of two effects per head: M19 figure 2, in a report or as a picture of its own (SVG)."""

from __future__ import annotations

from collections.abc import Sequence

from headcount.report.assets import standalone
from headcount.report.chart import WIDTH, Axes, drawing, mark, spread, words
from headcount.report.markup import Markup, tag
from headcount.report.words import change

HEIGHT = 320.0
Points = Sequence[tuple[str, float, float]]


def scatter_chart(points: Points, across: str, up: str, caption: str = "", metric: str | None = None) -> Markup:
    """Points `(name, x, y)`, with lines through zero and the line on which both effects are the same."""
    both = spread([0.0, *(x for _, x, _ in points), *(y for _, _, y in points)])
    axes = Axes(both, both, height=HEIGHT, top=26.0 if caption else 10.0)
    left, right, top, base = axes.left, WIDTH - axes.right, axes.top, HEIGHT - axes.bottom
    zero_x, zero_y = axes.x(0.0), axes.y(0.0)
    return drawing(
        HEIGHT,
        axes.frame(across, up),
        tag("line", class_="axis", x1=left, x2=right, y1=zero_y, y2=zero_y),
        tag("line", class_="axis", x1=zero_x, x2=zero_x, y1=top, y2=base),
        tag("line", class_="ruler", x1=left, x2=right, y1=base, y2=top),
        words(WIDTH / 2, 15, caption, "middle", "name") if caption else None,
        *(
            mark("circle", [name, *_said(x, y, across, up, metric)], "point c0", name, cx=axes.x(x), cy=axes.y(y), r=4)
            for name, x, y in points
        ),
        label=f"{up} against {across}",
    )


def scatter_svg(points: Points, across: str, up: str, caption: str = "", metric: str | None = None) -> str:
    """The same as a file of its own; hovering shows a point's name and values.

    >>> picture = scatter_svg([("encoder.0.1", -0.01, -0.02)], "in domain", "out of domain")
    >>> picture.startswith("<svg"), "encoder.0.1" in picture
    (True, True)
    """
    chart = scatter_chart(points, f"change, {across}", f"change, {up}", caption, metric)
    return standalone(chart)


def _said(x: float, y: float, across: str, up: str, metric: str | None) -> list[str]:
    return [f"{across}: {change(x, metric)}", f"{up}: {change(y, metric)}"]
