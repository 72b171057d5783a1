"""The page around the sections: its head, its policy (no network at all), its style and script."""

from __future__ import annotations

import headcount
from headcount.report.assets import asset, fingerprint
from headcount.report.facts import Facts
from headcount.report.markup import Markup, join, tag
from headcount.report.runs import Run, model_name
from headcount.report.sections.alone import alone
from headcount.report.sections.curves import curves
from headcount.report.sections.domains import domains, evaluations
from headcount.report.sections.headline import headline
from headcount.report.sections.heads import heads
from headcount.report.sections.layers import layers
from headcount.report.sections.layout import unfinished
from headcount.report.sections.provenance import provenance
from headcount.report.sections.roles import roles
from headcount.report.sections.speed import speed
from headcount.report.sections.training import dynamics, gates

MARK = "<!doctype html>\n<!-- a report of headcount -->\n"
SECTIONS = (heads, alone, curves, layers, speed, domains, roles, gates, dynamics, evaluations)


def page(models: list[list[Run]]) -> str:
    """The whole report; each list holds the runs of one model."""
    style, script = asset("chart.css") + asset("page.css"), asset("page.js")
    policy = (
        f"default-src 'none'; style-src {fingerprint(style)}; script-src {fingerprint(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    names = [model_name(runs) for runs in models]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=f"headcount {headcount.__version__}"),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"headcount: {', '.join(names)}"),
        Markup(f"<style>{style}</style>"),
    )
    body = tag(
        "body",
        tag("header", tag("p", f"headcount {headcount.__version__} report", class_="brand"), _contents(names)),
        tag("main", *(_model(Facts(runs), place) for place, runs in enumerate(models))),
        tag("footer", _footer()),
        tag("div", id="tip", role="status", hidden=""),
        Markup(f"<script>{script}</script>"),
    )
    return MARK + tag("html", head, body, lang="en") + "\n"


def _model(facts: Facts, place: int) -> Markup:
    open_ones = [unfinished(run) for run in facts.runs if not run.finished]
    made = [section for part in SECTIONS if (section := part(facts)) is not None]
    return tag("article", headline(facts), *open_ones, *made, provenance(facts), id=f"model-{place}")


def _contents(names: list[str]) -> Markup | None:
    """Links to the models, where there are several."""
    if len(names) < 2:
        return None
    links = [tag("li", tag("a", name, href=f"#model-{place}")) for place, name in enumerate(names)]
    return tag("nav", tag("ul", *links))


def _footer() -> Markup:
    return join(
        "Heads are written kind.layer.index, counted from 0. A change is the metric with heads off, or gone, minus "
        "that of the whole model on the same examples; intervals are 95% bootstrap intervals. The methods are those of "
        "Michel, Levy and Neubig (2019, arXiv:1905.10650) and Voita et al. (2019, arXiv:1905.09418)."
    )
