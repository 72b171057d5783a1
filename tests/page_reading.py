"""Reads a report back: the page as a tree, charts as the numbers that they show."""

from __future__ import annotations

import re
import xml.etree.ElementTree as Tree
from typing import NamedTuple

SVG = "{http://www.w3.org/2000/svg}"


def tree(page: str) -> Tree.Element:
    """Everything between style and script, as strict XML: markup that escaped its text would not be."""
    body = page.split("<body>", 1)[1]
    return Tree.fromstring(f"<body>{body.rsplit('<script>', 1)[0]}</body>")


def said(element: Tree.Element) -> str:
    """All text in an element."""
    return "".join(element.itertext())


def charts(page: str, label: str) -> list[Tree.Element]:
    """The charts whose label holds these words."""
    return [chart for chart in tree(page).iter(f"{SVG}svg") if label in chart.get("aria-label", "")]


class Mark(NamedTuple):
    """A mark of a chart: what it says, line by line, and its attributes."""

    lines: list[str]
    attributes: dict[str, str]

    @property
    def classes(self) -> list[str]:
        return self.attributes["class"].split()


def marks(chart: Tree.Element) -> list[Mark]:
    found = (element for element in chart.iter() if "mark" in element.get("class", "").split())
    return [Mark((element.findtext(f"{SVG}title") or "").split("\n"), dict(element.attrib)) for element in found]


def scale(chart: Tree.Element, axis: str) -> tuple[float, float]:
    """Factor and offset that turn a place on an axis into a value, from two of its tick labels."""
    found = []
    for element in chart.iter(f"{SVG}text"):
        words = said(element).replace("\u2212", "-")
        is_y = element.get("text-anchor") == "end"
        if re.fullmatch(r"-?[\d.]+%?", words) and is_y == (axis == "y") and element.get("class") is None:
            value = float(words.rstrip("%")) / (100 if words.endswith("%") else 1)
            place = float(element.attrib[axis]) - (3.5 if is_y else 0)
            found.append((place, value))
    (one, first), (other, last) = found[0], found[-1]
    factor = (last - first) / (other - one)
    return factor, first - factor * one


def values(chart: Tree.Element) -> list[tuple[str, float, float]]:
    """The first line of every dot, and the values at which it lies by the axes."""
    (fx, ox), (fy, oy) = scale(chart, "x"), scale(chart, "y")
    dots = [mark for mark in marks(chart) if "cx" in mark.attributes]
    return [
        (dot.lines[0], fx * float(dot.attributes["cx"]) + ox, fy * float(dot.attributes["cy"]) + oy) for dot in dots
    ]
