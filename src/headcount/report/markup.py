"""HTML and SVG that cannot be broken by what is put into it: text is escaped unless it was made here."""

from __future__ import annotations

import re
from html import escape

# Control and bidirectional marks and lone surrogates have no business in a page: they hide or reorder other text.
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_VOID = {"meta", "link", "br", "col", "rect", "circle", "line", "path", "polygon", "polyline"}


class Markup(str):
    """Text that is markup already."""


def text(value: object) -> Markup:
    """Anything as text of a page.

    >>> text("<b>&amp;")
    '&lt;b&gt;&amp;amp;'
    """
    return value if isinstance(value, Markup) else Markup(escape(_UNFIT.sub("\ufffd", str(value))))


def join(*parts: object) -> Markup:
    """Parts one after the other; None is nothing."""
    return Markup("".join(text(part) for part in parts if part is not None))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element; `class_` is its class, `stroke_width` is `stroke-width`, an attribute that is None is left out.

    >>> tag("p", "1 < 2", tag("b", "!"), class_="plain")
    '<p class="plain">1 &lt; 2<b>!</b></p>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    closing = "" if name in _VOID and not children else f"{join(*children)}</{name}>"
    end = "/>" if name in _VOID and not children else ">"
    return Markup(f"<{name}{written}{end}{closing}")


def _plain(value: object) -> object:
    """Coordinates with one decimal: a tenth of a pixel is enough."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value
