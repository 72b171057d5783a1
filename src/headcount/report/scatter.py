"""A scatter of two effects per head as a small picture of its own (SVG): M19 figure 2."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

SIZE, MARGIN = 420, 56


def scatter_svg(
    points: Sequence[tuple[str, float, float]], across: str, up: str, caption: str = "", digits: int = 4
) -> str:
    """Points `(name, x, y)` with both axes through zero; hovering shows a point's name and values.

    >>> picture = scatter_svg([("encoder.0.1", -0.01, -0.02)], "in domain", "out of domain")
    >>> picture.startswith("<svg"), "encoder.0.1" in picture
    (True, True)
    """
    xs, ys = [x for _, x, _ in points], [y for _, _, y in points]
    low_x, high_x = _range(xs)
    low_y, high_y = _range(ys)
    inner = SIZE - 2 * MARGIN

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            MARGIN + inner * (x - low_x) / (high_x - low_x),
            SIZE - MARGIN - inner * (y - low_y) / (high_y - low_y),
        )

    zero_x, zero_y = place(0.0, 0.0)
    dots = "".join(
        f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="4">'
        f"<title>{escape(name)}: {x:+.{digits}f}, {y:+.{digits}f}</title></circle>"
        for name, x, y in points
        for cx, cy in [place(x, y)]
    )
    end = SIZE - MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" width="{SIZE}" height="{SIZE}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="{SIZE}" height="{SIZE}" fill="white"/>'
        f'<g stroke="#999"><line x1="{MARGIN}" x2="{end}" y1="{zero_y:.1f}" y2="{zero_y:.1f}"/>'
        f'<line x1="{zero_x:.1f}" x2="{zero_x:.1f}" y1="{MARGIN}" y2="{end}"/></g>'
        f'<g fill="#2563eb" fill-opacity="0.6">{dots}</g>'
        f'<g fill="#333"><text x="{SIZE / 2}" y="24" text-anchor="middle" font-size="14">{escape(caption)}</text>'
        f'<text x="{SIZE / 2}" y="{SIZE - 12}" text-anchor="middle">change, {escape(across)}</text>'
        f'<text transform="translate(16 {SIZE / 2}) rotate(-90)" text-anchor="middle">change, {escape(up)}</text>'
        f'<text x="{MARGIN}" y="{end + 18}">{low_x:+.{digits}f}</text>'
        f'<text x="{end}" y="{end + 18}" text-anchor="end">{high_x:+.{digits}f}</text>'
        f'<text x="{MARGIN - 4}" y="{end}" text-anchor="end" font-size="10">{low_y:+.{digits}f}</text>'
        f'<text x="{MARGIN - 4}" y="{MARGIN + 8}" text-anchor="end" font-size="10">{high_y:+.{digits}f}</text>'
        "</g></svg>\n"
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    """A range that holds all values and zero, with a little room."""
    low, high = min([0.0, *values]), max([0.0, *values])
    room = (high - low) * 0.05 or 1.0
    return low - room, high + room
