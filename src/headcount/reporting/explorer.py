"""Heads at work on a text: the page of `headcount explore` and `headcount view`, and a section of the report.

One script draws all three. The live page asks its server; the others hold every answer that they can give.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import headcount
from headcount.reporting.markup import REPORT, Assets, Markup, data_block, document, section, tag
from headcount.reporting.runs import ModelRuns, mapping

STYLES, SCRIPTS = (*REPORT.styles, "explorer.css"), ("attention.js", "grid.js", "answer.js", "explorer.js")
LIVE, STATIC = Assets(STYLES, SCRIPTS, asks=True), Assets(STYLES, SCRIPTS)
WITH_VIEWS = Assets(STYLES, (*REPORT.scripts, *SCRIPTS))  # a report that has some
MARK = "<!doctype html>\n<!-- a view of headcount -->\n"


def explorer_page(content: Mapping[str, Any]) -> str:
    """The whole page. content: what the script reads, with `live` true if there is a server to ask."""
    version = f"headcount {headcount.__version__}"
    header = tag(
        "header",
        tag("p", tag("b", "headcount"), " explore" if content.get("live") else " view", class_="brand"),
        tag("p", content.get("model"), class_="of"),
        class_="top",
    )
    title, assets = f"{content.get('model')}: heads at work", LIVE if content.get("live") else STATIC
    page = document(title, version, header, _explorer(content, "page"), assets=assets)
    return f"{MARK}{page}\n"


def explorer_policy(live: bool) -> str:
    """The content security policy of the page."""
    return (LIVE if live else STATIC).policy


def views(model: ModelRuns) -> Markup | None:
    """The texts that `headcount view` has read with a model, as a section of the report."""
    shown = [_explorer(view, "part") for run in model.of("view") if (view := mapping(run.content.get("view")))]
    about = "Click a head to turn it off on one text; point at it to see its attention."
    return section("Heads at work", *shown, summary=about) if shown else None


def _explorer(content: Mapping[str, Any], where: str) -> Markup:
    """Where the script draws, and what it reads. where: `page`, or `part` of another page."""
    missing = tag("noscript", "This part needs JavaScript.")
    return tag("main" if where == "page" else "div", missing, data_block(content), class_=f"explorer {where}")
