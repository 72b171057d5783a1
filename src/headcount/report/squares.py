"""Layers before and after: every head a square, those that are left filled, those that went crossed out."""

from __future__ import annotations

from collections.abc import Collection

from headcount.heads import Head
from headcount.report.chart import WIDTH, drawing, mark, words
from headcount.report.markup import Markup, join, tag

LEFT, RIGHT, TOP = 26.0, 54.0, 4.0


def layers_chart(kept: Collection[Head], removed: Collection[Head], kind: str, tip: dict[Head, list[str]]) -> Markup:
    """One attention kind: a row for each layer, `12 → 5` behind it."""
    heads = sorted(head for head in {*kept, *removed} if head.kind == kind)
    layers = sorted({head.layer for head in heads})
    columns = 1 + max((head.index for head in heads), default=0)
    cell = min((WIDTH - LEFT - RIGHT) / columns, 36.0)
    tall = max(min(cell, 22.0), 10.0)
    gone = set(removed)
    drawn = []
    for place, layer in enumerate(layers):
        here = [head for head in heads if head.layer == layer]
        left = sum(head not in gone for head in here)
        y = TOP + tall * place
        drawn.append(words(LEFT - 6, y + tall / 2 + 3.5, layer, "end"))
        drawn.append(words(LEFT + cell * columns + 8, y + tall / 2 + 3.5, f"{len(here)} → {left}"))
        drawn += [_square(LEFT + cell * head.index, y, cell, tall, head, head in gone, tip) for head in here]
    label = f"{kind}: heads that are left, layer by layer"
    return drawing(TOP + tall * len(layers) + 4, *drawn, label=label, columns=columns)


def _square(x: float, y: float, cell: float, tall: float, head: Head, gone: bool, tip: dict[Head, list[str]]) -> Markup:
    lines = [str(head), "removed" if gone else "kept", *tip.get(head, [])]
    box = {"x": x + 1, "y": y + 1, "width": max(cell - 2, 1.0), "height": tall - 2}
    square = mark("rect", lines, f"cell {'gone' if gone else 'kept'}", head, **box, rx=2)
    if not gone:
        return square
    inset = min(cell, tall) * 0.3
    ends = {"x1": x + inset, "x2": x + cell - inset}
    return join(
        square,
        tag("line", class_="cross", **ends, y1=y + inset, y2=y + tall - inset),
        tag("line", class_="cross", **ends, y1=y + tall - inset, y2=y + inset),
    )
