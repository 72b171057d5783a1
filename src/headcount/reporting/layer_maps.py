"""Maps of a model: a row for each layer, a cell for each head; coloured by a value, or crossed out where removed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from headcount.heads import Head
from headcount.reporting.charts import WIDTH, drawing, mark, text_at
from headcount.reporting.markup import Markup, charting, join, tag

LEFT, GAP = 26.0, 1.5  # room for the layers' numbers; room between cells
STEPS = 5  # colours on each side of the diverging palette
LEVELS = 8  # colours of the sequential palette above its lightest
DIVERGING = [f"w{i}" for i in range(STEPS, 0, -1)] + ["z0"] + [f"b{i}" for i in range(1, STEPS + 1)]
SEQUENTIAL = [f"s{i}" for i in range(LEVELS + 1)]


def kinds(heads: Iterable[Head]) -> list[str]:
    """Attention kinds in a fixed order: encoder, decoder, cross, then others by name."""
    known = {"encoder": 0, "decoder": 1, "cross": 2}
    return sorted({head.kind for head in heads}, key=lambda kind: (known.get(kind, 3), kind))


@charting
def heat_map(
    heads: Sequence[Head],
    colour: Callable[[Head], str],
    tip: Callable[[Head], Sequence[str]],
    label: str,
    letter: Callable[[Head], str] = lambda head: "",
    width: int = 0,
) -> Markup:
    """Heads of one kind as coloured cells; `letter` is written on a cell, `width` is the least number of columns."""
    grid = _Grid.of(heads, width=width, top=16.0, largest=80.0, heights=(7.0, 26.0))
    size = max(4.0, min(11.0, 0.62 * grid.cell, 0.62 * grid.tall))
    cells, letters = [], []
    for head in sorted(heads):
        cells.append(mark("rect", tip(head), f"cell {colour(head)}", head, **grid.box(head)))
        if written := letter(head):
            x, y = grid.corner(head)
            place = {"x": x + grid.cell / 2, "y": y + grid.tall / 2 + 0.36 * size, "font_size": size}
            letters.append(tag("text", written, class_=f"on {colour(head)}", text_anchor="middle", **place))
    return drawing(
        grid.bottom + 2, grid.column_numbers(), grid.layer_numbers(), *cells, *letters,
        label=label, columns=grid.columns,
    )  # fmt: skip


@charting
def kept_map(
    kept: Collection[Head], removed: Collection[Head], tip: Callable[[Head], Sequence[str]], label: str
) -> Markup:
    """Heads of one kind after pruning: kept cells filled, removed ones crossed out, `12 → 5` beside each layer."""
    heads, gone = sorted({*kept, *removed}), set(removed)
    grid = _Grid.of(heads, top=4.0, right=54.0, largest=36.0, heights=(10.0, 22.0))
    drawn = [grid.layer_numbers()]
    for place, layer in enumerate(grid.layers):
        left = [head not in gone for head in heads if head.layer == layer]
        y = grid.top + grid.tall * (place + 0.5) + 3.5
        drawn.append(text_at(LEFT + grid.cell * grid.columns + 8, y, f"{len(left)} → {sum(left)}"))
    for head in heads:
        name, *facts = tip(head)
        state = "removed" if head in gone else "kept"
        drawn.append(mark("rect", [name, state, *facts], f"cell {state}", head, **grid.box(head)))
        if head in gone:
            drawn.append(_cross(grid, head))
    return drawing(grid.bottom + 4, *drawn, label=label, columns=grid.columns)


def _cross(grid: _Grid, head: Head) -> Markup:
    (x, y), inset = grid.corner(head), min(grid.cell, grid.tall) * 0.3
    ends = {"x1": x + inset, "x2": x + grid.cell - inset}
    high, low = y + inset, y + grid.tall - inset
    return join(
        tag("line", class_="cross", **ends, y1=high, y2=low), tag("line", class_="cross", **ends, y1=low, y2=high)
    )


@dataclass(frozen=True)
class _Grid:
    """Where each head's cell lies."""

    layers: list[int]
    columns: int
    top: float
    cell: float
    tall: float

    @classmethod
    def of(
        cls,
        heads: Iterable[Head],
        top: float,
        largest: float,
        heights: tuple[float, float],
        width: int = 0,
        right: float = 0.0,
    ) -> _Grid:
        """Cells as wide as fit beside `right`, at most `largest`, and about as tall as wide within `heights`."""
        found = list(heads)
        columns = max(width, 1 + max((head.index for head in found), default=0))
        cell = min((WIDTH - LEFT - right) / columns, largest)
        return cls(sorted({head.layer for head in found}), columns, top, cell, max(min(cell, heights[1]), heights[0]))

    @property
    def bottom(self) -> float:
        return self.top + self.tall * len(self.layers)

    def corner(self, head: Head) -> tuple[float, float]:
        return LEFT + self.cell * head.index, self.top + self.tall * self.layers.index(head.layer)

    def box(self, head: Head) -> dict[str, float]:
        x, y = self.corner(head)
        size = {"width": max(self.cell - GAP, 1.0), "height": self.tall - GAP}
        return {"x": x + GAP / 2, "y": y + GAP / 2, **size, "rx": 2}

    def layer_numbers(self) -> Markup:
        """The number of every layer, or of every few where they would overlap."""
        every = 1 + int(9 / self.tall)
        rows = list(enumerate(self.layers))[::every]
        return join(*(text_at(LEFT - 6, self.top + self.tall * (row + 0.5) + 3.5, n, "end") for row, n in rows))

    def column_numbers(self) -> Markup:
        every = 1 + int(14 / self.cell)
        return join(*(text_at(LEFT + self.cell * (i + 0.5), 11, i, "middle") for i in range(0, self.columns, every)))


def diverging(value: float | None, most: float, worse: bool) -> str:
    """The colour of a change: `w5` (much worse) to `w1`, `z0`, `b1` to `b5` (much better).

    >>> diverging(-0.1, 0.1, True), diverging(0.001, 0.1, False), diverging(0.06, 0.1, False)
    ('w5', 'z0', 'b3')
    """
    if value is None:
        return "none"
    step = min(STEPS, round(STEPS * abs(value) / most)) if most else 0
    return f"{'w' if worse else 'b'}{step}" if step else "z0"


def sequential(value: float | None, most: float) -> str:
    """The colour of an amount: `s0` to `s8`.

    >>> sequential(0.0, 2.0), sequential(2.0, 2.0)
    ('s0', 's8')
    """
    if value is None:
        return "none"
    return f"s{max(0, min(LEVELS, round(LEVELS * value / most))) if most > 0 else 0}"


@charting
def colour_scale(colours: Sequence[str], low: str, middle: str, high: str) -> Markup:
    """The legend of a heat map: a strip of its colours, and what its ends mean."""
    each = WIDTH / len(colours)
    strip = [tag("rect", class_=f"cell {c}", x=each * i, width=each, height=9) for i, c in enumerate(colours)]
    picture = tag("svg", *strip, viewBox=f"0 0 {WIDTH:g} 9", preserveAspectRatio="none", class_="strip")
    ends = join(*(tag("span", end) for end in (low, middle, high)))
    return tag("div", picture, tag("div", ends, class_="ends"), class_="scale", aria_hidden="true")
