"""Heat maps of heads: a row for each layer, a column for each head, one picture per attention kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headcount.heads import Head
from headcount.report.chart import WIDTH, drawing, mark, words
from headcount.report.markup import Markup, join, tag

STEPS = 5  # colours on each side of the diverging palette
LEVELS = 8  # colours of the sequential one, above its lightest
LEFT, TOP, GAP = 26.0, 16.0, 1.5


def kinds(heads: Iterable[Head]) -> list[str]:
    """Attention kinds in a fixed order: those of one model read encoder, decoder, cross."""
    known = {"encoder": 0, "decoder": 1, "cross": 2}
    return sorted({head.kind for head in heads}, key=lambda kind: (known.get(kind, 3), kind))


def grid(
    heads: Sequence[Head],
    colour: Callable[[Head], str],
    tip: Callable[[Head], Sequence[str]],
    label: str,
    letter: Callable[[Head], str] = lambda head: "",
    width: int = 0,
) -> Markup:
    """Heads of one kind as coloured squares; `letter` is written on them, `width` is how many columns there are."""
    layers = sorted({head.layer for head in heads})
    columns = max(width, 1 + max((head.index for head in heads), default=0))
    cell = min((WIDTH - LEFT) / columns, 80.0)
    tall = max(min(cell, 26.0), 7.0)
    size = max(4.0, min(11.0, 0.62 * cell, 0.62 * tall))
    row = {layer: place for place, layer in enumerate(layers)}
    every_row, every_column = 1 + int(9 / tall), 1 + int(14 / cell)
    cells, letters = [], []
    for head in sorted(heads):
        x, y = LEFT + cell * head.index, TOP + tall * row[head.layer]
        box = {"x": x + GAP / 2, "y": y + GAP / 2, "width": max(cell - GAP, 1.0), "height": tall - GAP}
        cells.append(mark("rect", tip(head), f"cell {colour(head)}", head, **box, rx=2))
        if said := letter(head):
            place = {"x": x + cell / 2, "y": y + tall / 2 + 0.36 * size, "font_size": size}
            letters.append(tag("text", said, class_=f"on {colour(head)}", text_anchor="middle", **place))
    return drawing(
        TOP + tall * len(layers) + 2,
        *(words(LEFT + cell * (i + 0.5), 11, i, "middle") for i in range(0, columns, every_column)),
        *(words(LEFT - 6, TOP + tall * (row[n] + 0.5) + 3.5, n, "end") for n in layers[::every_row]),
        *cells,
        *letters,
        label=label,
        columns=columns,
    )


def diverging(value: float | None, most: float, for_the_worse: bool) -> str:
    """The colour of a change: `w5` (much worse) to `w1`, `z0`, `b1` to `b5` (much better).

    >>> diverging(-0.1, 0.1, True), diverging(0.001, 0.1, False), diverging(0.06, 0.1, False)
    ('w5', 'z0', 'b3')
    """
    if value is None:
        return "none"
    step = min(STEPS, round(STEPS * abs(value) / most)) if most else 0
    return f"{'w' if for_the_worse else 'b'}{step}" if step else "z0"


def sequential(value: float | None, most: float) -> str:
    """The colour of an amount: `s0` to `s8`.

    >>> sequential(0.0, 2.0), sequential(2.0, 2.0)
    ('s0', 's8')
    """
    if value is None:
        return "none"
    return f"s{max(0, min(LEVELS, round(LEVELS * value / most))) if most > 0 else 0}"


def scale(colours: Sequence[str], low: str, middle: str, high: str) -> Markup:
    """The legend of a heat map: a strip of its colours, and what its ends mean."""
    each = WIDTH / len(colours)
    strip = [tag("rect", class_=f"cell {c}", x=each * i, width=each, height=9) for i, c in enumerate(colours)]
    picture = tag("svg", *strip, viewBox=f"0 0 {WIDTH:g} 9", preserveAspectRatio="none", class_="strip")
    ends = join(*(tag("span", said) for said in (low, middle, high)))
    return tag("div", picture, tag("div", ends, class_="ends"), class_="scale", aria_hidden="true")


DIVERGING = [f"w{i}" for i in range(STEPS, 0, -1)] + ["z0"] + [f"b{i}" for i in range(1, STEPS + 1)]
SEQUENTIAL = [f"s{i}" for i in range(LEVELS + 1)]
