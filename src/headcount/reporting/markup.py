"""Self-contained HTML: text is escaped unless it was made here, and a page loads nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, wraps
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec

from headcount.errors import HeadcountError
from headcount.files import write_whole

# Control characters, bidirectional marks and lone surrogates hide or reorder other text.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
_ROOTS = (":root", "html", "body")
CARD = "headcount-result"  # the class of what a notebook shows
_VOID = {"meta", "link", "br", "col", "rect", "circle", "line", "path", "polygon", "polyline"}

Columns = Mapping[str, Callable[[Any], object]]
Arguments = ParamSpec("Arguments")


class Drawing(NamedTuple):
    """A chart as the call that made it: the name of a function here, and what it was given."""

    function: str
    arguments: Mapping[str, Any]


class Picture(NamedTuple):
    """A figure of a page: its title, and the charts and legends in it."""

    title: str
    drawings: tuple[Drawing, ...]


class Markup(str):
    """Text that is markup already and must not be escaped again; it remembers the pictures that it shows."""

    drawings: tuple[Drawing, ...] = ()  # that are not part of a picture yet
    pictures: tuple[Picture, ...] = ()


def charting(make: Callable[Arguments, Markup]) -> Callable[Arguments, Markup]:
    """Mark a function that draws: what it draws remembers the call, so that `plots` can draw the same on paper."""

    @wraps(make)
    def made(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Markup:
        drawn = make(*args, **kwargs)
        given = inspect.signature(make).bind(*args, **kwargs)
        given.apply_defaults()
        drawn.drawings = (Drawing(make.__name__, given.arguments),)
        return drawn

    return made


def text(value: object) -> Markup:
    """Anything as the text of a page.

    >>> text("<b>&amp;")
    '&lt;b&gt;&amp;amp;'
    """
    return value if isinstance(value, Markup) else Markup(escape(_UNSAFE.sub("\ufffd", str(value))))


def join(*parts: object) -> Markup:
    """Parts one after the other; None is skipped."""
    written = [text(part) for part in parts if part is not None]
    joined = Markup("".join(written))
    joined.drawings = tuple(drawing for part in written for drawing in part.drawings)
    joined.pictures = tuple(picture for part in written for picture in part.pictures)
    return joined


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element; `class_` is its class, `stroke_width` is `stroke-width`, an attribute that is None is left out.

    >>> tag("p", "1 < 2", tag("b", "!"), class_="plain")
    '<p class="plain">1 &lt; 2<b>!</b></p>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(_attribute(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID and not children:
        return Markup(f"<{name}{written}/>")
    return join(Markup(f"<{name}{written}>"), *children, Markup(f"</{name}>"))


def _attribute(value: object) -> object:
    """Coordinates with one decimal: a tenth of a pixel is enough."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


# ------------------------------------------------------------------------------------------------------------- the page


@lru_cache
def asset(name: str) -> str:
    """A style sheet or script that lies beside this file."""
    return (files("headcount.reporting") / name).read_text(encoding="utf-8")


class Assets(NamedTuple):
    """The style sheets and scripts of a page, and whether it may ask the server that it came from."""

    styles: tuple[str, ...]
    scripts: tuple[str, ...]
    asks: bool = False

    @property
    def style(self) -> str:
        return "".join(map(asset, self.styles))

    @property
    def script(self) -> str:
        return "".join(map(asset, self.scripts))

    @property
    def policy(self) -> str:
        """The content security policy: these styles and scripts, and nothing else."""
        asks = "connect-src 'self'; " if self.asks else ""
        return (
            f"default-src 'none'; style-src {_fingerprint(self.style)}; script-src {_fingerprint(self.script)}; "
            f"img-src data:; {asks}base-uri 'none'; form-action 'none'"
        )


REPORT = Assets(("charts.css", "page.css"), ("page.js",))


def document(title: str, generator: str, *body: object, assets: Assets = REPORT) -> Markup:
    """A whole page with its style and script inside; its content security policy forbids everything else.

    >>> page = document("one < two", "headcount", tag("p", "hello"))
    >>> "<title>one &lt; two</title>" in page, "default-src 'none'" in page.replace("&#x27;", "'")
    (True, True)
    """
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=assets.policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=generator),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        Markup(f"<style>{assets.style}</style>"),
    )
    tip = tag("div", id="tip", role="status", hidden="")  # the script shows in it what a mark says
    return tag("html", head, tag("body", *body, tip, Markup(f"<script>{assets.script}</script>")), lang="en")


def card(*content: object) -> Markup:
    """Part of a page for a notebook, whose other content its style leaves alone."""
    style = Markup(f"<style>{_within(REPORT.style, f'.{CARD}')}</style>")
    return tag("div", style, *content, class_=CARD)


@lru_cache
def _within(style: str, place: str) -> str:
    """A style sheet that holds inside one element only.

    >>> _within("/* all */ :root, svg { --ink: #000; } @media print { p { margin: 0; } }", ".card")
    '.card, .card svg { --ink: #000; } @media print { .card p { margin: 0; } }'
    """

    def inside(rule: re.Match[str]) -> str:
        if rule[2].startswith("@"):
            return rule[0]
        selectors = (one.strip() for one in rule[2].split(","))
        return f"{rule[1]}{', '.join(place if one in _ROOTS else f'{place} {one}' for one in selectors)} {{"

    return re.sub(r"(\s*)([^{}]+?)\s*\{", inside, re.sub(r"/\*.*?\*/\s*", "", style, flags=re.DOTALL))


def data_block(content: Mapping[str, Any]) -> Markup:
    """JSON that a script of the page reads and nothing runs; no text in it can end the block."""
    written = json.dumps(content, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return Markup(f'<script type="application/json">{written}</script>')


def write_page(page: str, file: str | Path) -> Path:
    """Write a page whose first two lines say what it is; only a page of the same kind is overwritten."""
    path = Path(file)
    target = path.resolve()  # if it is a link, the file that it points to is written
    mark = "".join(page.splitlines(keepends=True)[:2])
    kind = mark.split()[4]  # <!doctype html> <!-- a report of headcount -->
    if target.is_dir():
        raise HeadcountError(f"{path} is a directory; name a file, such as {path / kind}.html")
    if not target.parent.is_dir():
        raise HeadcountError(f"the directory {path.parent} does not exist; create it, or write {path.name} elsewhere")
    if target.exists():
        if not target.is_file():
            raise HeadcountError(f"{path} is not a regular file; choose another name")
        with target.open("rb") as stream:
            if stream.read(len(mark)) != mark.encode() and target.stat().st_size:
                raise HeadcountError(f"{path} exists and is not a headcount {kind}; choose another name")
    write_whole(target, page.encode())
    return path


def _fingerprint(content: str) -> str:
    """How a content security policy names an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


# --------------------------------------------------------------------------------------------------- parts of a section


def section(title: str, *content: object, summary: object = None) -> Markup:
    """A heading, a paragraph that says what was found, then pictures and tables."""
    return tag("section", tag("h2", title), tag("p", summary) if summary else None, *content)


def section_for_each(title: str, items: Iterable[Any], *parts: Callable[[Any], object]) -> Markup | None:
    """A section with the same parts for every item; None without items."""
    made = [join(*(part(item) for part in parts)) for item in items]
    return section(title, *made) if made else None


def figure(title: str, *content: object, note: object = None) -> Markup:
    """A picture with its title and a note above it."""
    caption = tag("figcaption", tag("strong", title), tag("span", note, class_="note") if note else None)
    made = tag("figure", caption, *content)
    made.pictures, made.drawings = (Picture(title, made.drawings),), ()
    return made


def figures(pictures: Iterable[object]) -> Markup | None:
    """Pictures side by side, as many as fit; None without pictures."""
    found = list(pictures)
    return tag("div", *found, class_="figures") if found else None


@charting
def legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """Names beside their colours, below a chart: `(class, name)`."""
    sample = tag("rect", width=14, height=10, rx=2)
    keys = [(tag("svg", sample, viewBox="0 0 14 10", class_=f"key {colour}"), name) for colour, name in entries]
    return tag("ul", *(tag("li", *key) for key in keys), class_="legend")


def table(columns: Columns, rows: Iterable[Any], strong: Callable[[Any], bool] = lambda row: False) -> Markup:
    """A table from its column names and what each says about a row; names that end in `:` mark columns of words.

    A table wider than the page scrolls by itself.
    """
    kinds = {name: "words" if name.endswith(":") else None for name in columns}
    head = tag("tr", *(tag("th", name.rstrip(":"), class_=kind) for name, kind in kinds.items()))
    body = [
        tag(
            *("tr", *(tag("td", cell(row), class_=kinds[name]) for name, cell in columns.items())),
            class_="significant" if strong(row) else None,
        )
        for row in rows
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="wide", tabindex=0)


def folded(title: str, *content: object) -> Markup:
    """Content that opens on a click."""
    return tag("details", tag("summary", title), *content)


def sentences(*parts: str | None) -> str:
    """Sentences in a row; empty ones are skipped."""
    return " ".join(part for part in parts if part)


def listing(names: Sequence[object], most: int = 5) -> str:
    """The first few of many names.

    >>> listing("abcd", most=2)
    'a, b and 2 more'
    """
    shown = ", ".join(map(str, names[:most]))
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def capital(phrase: str) -> str:
    """The phrase with a capital first letter; the rest stays as it is.

    >>> capital("change of BLEU"), capital("")
    ('Change of BLEU', '')
    """
    return f"{phrase[:1].upper()}{phrase[1:]}"
