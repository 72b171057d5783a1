"""`report`: one self-contained page about one run or several, from the headline to where the numbers come from.

Heads at work on a text are the page of `headcount explore` and `headcount view`, and a section of the report. One
script draws all three. The live page asks its server; the others hold every answer that they can give.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import headcount
from headcount.errors import HeadcountError
from headcount.reporting.headline import headline
from headcount.reporting.heads import evaluations, heads, one_head_per_layer, other_data, roles
from headcount.reporting.markup import (
    REPORT,
    Assets,
    Columns,
    Markup,
    data_block,
    document,
    folded,
    join,
    section,
    table,
    tag,
    write_page,
)
from headcount.reporting.pruning import layers, removable
from headcount.reporting.runs import UNNAMED, ModelRuns, RunRecord, by_model, mapping, read, rows
from headcount.reporting.speed import speed
from headcount.reporting.training import causal, dynamics, gates

# How a report starts.
REPORT_MARK = "<!doctype html>\n<!-- a report of headcount -->\n"
# What a report can show, by the command that measures it.
AVAILABLE = {
    "ablate": ("the effect of each head", "headcount ablate MODEL --data DEV --out RUN"),
    "importance": ("importance", "headcount importance MODEL --data TRAIN --out RUN"),
    "curve": ("pruning curves", "headcount curve MODEL --score-data TRAIN --data DEV --out RUN"),
    "prune": ("a pruned model", "headcount prune MODEL --score-data TRAIN --data DEV --max-drop 0.5 --out RUN"),
    "bench": ("speed", "headcount bench MODEL PRUNED --out RUN"),
    "compare": ("effects on other data", "headcount compare MODEL --data IN --against OUT --out RUN"),
    "roles": ("roles", "headcount roles MODEL --data TEXT --out RUN"),
    "gates": ("gates", "headcount gates MODEL --data TRAIN --out RUN"),
    "view": ("heads at work on a text", "headcount view MODEL --text TEXT --out RUN"),
    "track": ("training dynamics", "headcount track CHECKPOINTS --score-data TRAIN --data DEV --out RUN"),
}
FOOTER = (
    "Heads are written kind.layer.index, counted from 0. A change is the metric with heads ablated or removed minus "
    "the metric of the whole model on the same examples. Intervals have 95% confidence: exact and score intervals "
    "where outcomes are right or wrong, bootstrap intervals otherwise. The methods are those of Michel, Levy and "
    "Neubig (2019, arXiv:1905.10650) and Voita et al. (2019, arXiv:1905.09418)."
)
STYLES, SCRIPTS = (*REPORT.styles, "explorer.css"), ("attention.js", "grid.js", "answer.js", "explorer.js")
LIVE, STATIC = Assets(STYLES, SCRIPTS, asks=True), Assets(STYLES, SCRIPTS)
WITH_VIEWS = Assets(STYLES, (*REPORT.scripts, *SCRIPTS))  # a report that has some
VIEW_MARK = "<!doctype html>\n<!-- a view of headcount -->\n"


def report(results: Any, file: str | Path) -> Path:
    """Write one HTML page about runs; it is self-contained, needs no network, and nothing is computed.

    >>> import tempfile
    >>> run = {"command": "ablate", "model": "toy", "metric": "accuracy", "n": 10, "base": 0.9, "heads": []}
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     report(run, f"{directory}/report.html").read_text()[:15]
    '<!doctype html>'

    results: one or several run directories, or what headcount's functions return and `--json` prints.
    file: where to write it. An older report there is replaced; any other file is refused.
    """
    runs = [read(result) for result in (results if isinstance(results, (list, tuple)) else [results])]
    if not runs:
        raise HeadcountError("no runs given; name at least one run directory")
    return write_page(html(runs), file)


def html(runs: list[RunRecord]) -> str:
    """The page as text."""
    models, version = by_model(runs), f"headcount {headcount.__version__}"
    names = [model.name for model in models]
    page = document(
        f"headcount: {', '.join(names)}",
        version,
        tag("header", tag("p", f"{version} report", class_="brand"), _contents(names)),
        tag("main", *(_article(model, place) for place, model in enumerate(models))),
        tag("footer", FOOTER),
        assets=WITH_VIEWS if any(model.of("view") for model in models) else REPORT,
    )
    return f"{REPORT_MARK}{page}\n"


def _contents(names: list[str]) -> Markup | None:
    """Links to the models, if there are several."""
    if len(names) < 2:
        return None
    links = [tag("li", tag("a", name, href=f"#model-{place}")) for place, name in enumerate(names)]
    return tag("nav", tag("ul", *links))


def _article(model: ModelRuns, place: int) -> Markup:
    unfinished = [_unfinished(run) for run in model.runs if not run.finished]
    sections = [made for make in SECTIONS if (made := make(model)) is not None]
    return tag("article", headline(model), *unfinished, *sections, _provenance(model), id=f"model-{place}")


def _unfinished(run: RunRecord) -> Markup:
    """A run that has not finished: how far it is, and how to resume it."""
    shards = f" {run.shards} finished shard{' is' if run.shards == 1 else 's are'} kept." if run.shards else ""
    return tag(
        "div",
        tag("b", f"headcount {run.command} is not finished."),
        f"{shards} Run the same command again to resume where it stopped.",
        tag("pre", run.command_line) if run.command_line else None,
        class_="unfinished",
    )


# ---------------------------------------------------------------------------------------------- where numbers come from


def _provenance(model: ModelRuns) -> Markup:
    """The model and versions, then the command, data and signature of every run, then what was not measured."""
    pairs: Columns = {" ": lambda pair: pair[0], ":": lambda pair: pair[1]}
    return section(
        "Where the numbers come from",
        table(pairs, _common(model)),
        *map(_source, model.runs),
        _not_measured(model),
        summary="These commands measured every number; the report itself measures nothing.",
    )


def _common(model: ModelRuns) -> list[tuple[str, str]]:
    """What the runs of a model have in common; where they differ, each variant once."""
    pairs = [("model", run.model) for run in model.runs if run.model != UNNAMED]
    for run in model.runs:
        weights, versions = (mapping(run.signature.get(key)) for key in ("model", "versions"))
        if weights.get("fingerprint"):
            pairs.append(("weights", f"{weights.get('class')}, fingerprint {weights['fingerprint']}"))
        if versions:
            pairs.append(("versions", ", ".join(f"{name} {version}" for name, version in versions.items())))
    order = ("model", "weights", "versions")
    return sorted(dict.fromkeys(pairs), key=lambda pair: order.index(pair[0]))


def _source(run: RunRecord) -> Markup:
    facts = [f"run directory {run.directory}"] if run.directory else []
    facts += [f"seed {run.signature['seed']}"] if "seed" in run.signature else []
    facts += map(_task, rows(run.signature.get("tasks")))
    return join(
        tag("pre", run.command_line or f"headcount {run.command} …", None if run.finished else "   # not finished"),
        tag("p", "; ".join(facts), class_="note") if facts else None,
        folded("Signature", tag("pre", json.dumps(run.signature, indent=2, ensure_ascii=False))),
    )


def _task(task: dict[str, Any]) -> str:
    metric = f" by {task['metric']}" if task.get("metric") else ""
    return f"{task.get('n')} examples, {task.get('task')}{metric}, fingerprint {task.get('fingerprint')}"


def _not_measured(model: ModelRuns) -> Markup | None:
    measured = {run.command.partition(" ")[0] for run in model.runs if run.finished}
    missing = [(name, tag("code", line)) for command, (name, line) in AVAILABLE.items() if command not in measured]
    columns: Columns = {"not measured": lambda pair: pair[0], "command:": lambda pair: pair[1]}
    return folded("What is not in this report", table(columns, missing)) if missing else None


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
    return f"{VIEW_MARK}{page}\n"


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


# Each takes the runs of a model and gives a section, or None if no run is about it. In the order of the page.
SECTIONS = (
    *(heads, views, one_head_per_layer, removable, layers, speed),
    *(other_data, roles, gates, causal, dynamics, evaluations),
)
