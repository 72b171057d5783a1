"""What sections are made of: a heading, a paragraph that says what was found, pictures and tables."""

from __future__ import annotations

from collections.abc import Sequence

from headcount.report.markup import Markup, join, tag
from headcount.report.runs import Run

DO_AGAIN = "Run the same command again: it goes on where it stopped."


def section(title: str, *content: object, summary: object = None) -> Markup:
    return tag("section", tag("h2", title), tag("p", summary) if summary else None, *content)


def figures(*pictures: object) -> Markup:
    return tag("div", *pictures, class_="figures")


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], strong: Sequence[bool] = ()) -> Markup:
    """A table that scrolls by itself where it is wider than the page; columns that end in `:` hold words."""
    kinds = ["words" if column.endswith(":") else None for column in columns]
    head = tag("tr", *(tag("th", name.rstrip(":"), class_=k) for name, k in zip(columns, kinds, strict=True)))
    body = [
        tag(
            *("tr", *(tag("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True))),
            class_="significant" if place < len(strong) and strong[place] else None,
        )
        for place, row in enumerate(rows)
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="wide", tabindex=0)


def folded(title: str, *content: object) -> Markup:
    return tag("details", tag("summary", title), *content)


def unfinished(run: Run) -> Markup:
    """A run that has not ended: what there is of it, and how to go on."""
    kept = f" {run.shards} finished parts are kept." if run.shards else ""
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


def lines(items: Sequence[object]) -> Markup:
    return join(*(tag("p", item) for item in items))
