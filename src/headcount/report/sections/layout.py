"""What sections are made of: a heading, a paragraph that says what was found, pictures and tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headcount.report.markup import Markup, tag
from headcount.report.runs import Run

Columns = Mapping[str, Callable[[Any], object]]
DO_AGAIN = "Run the same command again: it goes on where it stopped."


def section(title: str, *content: object, summary: object = None) -> Markup:
    return tag("section", tag("h2", title), tag("p", summary) if summary else None, *content)


def figures(*pictures: object) -> Markup:
    return tag("div", *pictures, class_="figures")


def table(columns: Columns, rows: Sequence[Any], strong: Callable[[Any], bool] = lambda row: False) -> Markup:
    """Names of columns with what they say of a row; those that end in `:` hold words.

    A table that is wider than the page scrolls by itself.
    """
    kinds = {name: "words" if name.endswith(":") else None for name in columns}
    head = tag("tr", *(tag("th", name.rstrip(":"), class_=kind) for name, kind in kinds.items()))
    body = [
        tag(
            *("tr", *(tag("td", say(row), class_=kinds[name]) for name, say in columns.items())),
            class_="significant" if strong(row) else None,
        )
        for row in rows
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="wide", tabindex=0)


def folded(title: str, *content: object) -> Markup:
    return tag("details", tag("summary", title), *content)


def unfinished(run: Run) -> Markup:
    """A run that has not ended: what there is of it, and how to go on."""
    kept = f" {run.shards} finished part{' is' if run.shards == 1 else 's are'} kept." if run.shards else ""
    return tag(
        "div",
        tag("b", f"headcount {run.command} is not finished."),
        kept,
        f" {DO_AGAIN}",
        tag("pre", run.command_line) if run.command_line else None,
        class_="unfinished",
    )


def sentences(*parts: str | None) -> str:
    return " ".join(part for part in parts if part)


def listing(names: Sequence[object], most: int = 5) -> str:
    """Names in a sentence, the first few of them."""
    shown = ", ".join(map(str, names[:most]))
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
