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
from headcount.reporting import numbers
from headcount.reporting.charts import Estimate, interval_chart
from headcount.reporting.headline import headline
from headcount.reporting.heads import heads, one_head_per_layer, other_data, roles
from headcount.reporting.markup import (
    REPORT,
    Assets,
    Columns,
    Markup,
    Picture,
    capital,
    card,
    data_block,
    document,
    figure,
    figures,
    folded,
    join,
    listing,
    section,
    sentences,
    table,
    tag,
    write_page,
)
from headcount.reporting.numbers import number
from headcount.reporting.plots import frame, plot, write_figures
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
MOST_MASKS = 40  # that a chart has rows for
VIEW_MARK = "<!doctype html>\n<!-- a view of headcount -->\n"


def report(results: Any, file: str | Path, figures: str | Path | None = None) -> Path:
    """Write one HTML page about runs; it is self-contained, needs no network, and nothing is computed.

    >>> import tempfile
    >>> run = {"command": "ablate", "model": "toy", "metric": "accuracy", "n": 10, "base": 0.9, "heads": []}
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     report(run, f"{directory}/report.html").read_text()[:15]
    '<!doctype html>'

    results: one or several run directories, or what headcount's functions return and `--json` prints.
    file: where to write it. An older report there is replaced; any other file is refused.
    figures: a directory for every chart as SVG and PDF, for a paper (`pip install 'headcount[plot]'`).
    """
    several = isinstance(results, (list, tuple)) and not isinstance(results, Shown)
    runs = [read(result) for result in (results if several else [results])]
    if not runs:
        raise HeadcountError("no runs given; name at least one run directory")
    if figures is not None:
        write_figures([picture for model in by_model(runs) for picture in pictures_of(model)], figures)
    return write_page(html(runs), file)


class Shown:
    """What every result can do: a notebook shows it as the report does, and it can be drawn and tabulated.

    >>> from headcount.heads import Head
    >>> class Found(Shown):
    ...     def to_json(self):
    ...         return {"method": "gradient", "heads": [{"head": "encoder.0.1", "score": 2.0}]}
    >>> "Importance (gradient)" in Found()._repr_html_()
    True
    """

    def _repr_html_(self) -> str:
        model = ModelRuns([read(self)])  # whose path on this machine nobody wants to publish with a notebook
        return card(headline(model, named=False), *sections_of(model))

    def plot(self, ax: Any = None, chart: int | str | None = None) -> Any:
        """Draw the report's charts with matplotlib (`pip install 'headcount[plot]'`).

        ax: axes to draw on, as many as there are charts; without it, new ones side by side.
        chart: only this chart, by its place or its title.
        Returns the axes, several as an array.
        """
        return plot(pictures_of(ModelRuns([read(self)])), ax, chart)

    def to_frame(self) -> Any:
        """The rows of the result as a pandas DataFrame: a head, layer, point, cut, stage, mask or measurement each."""
        return frame(read(self))


def sections_of(model: ModelRuns) -> list[Markup]:
    """Every section that the runs of a model have something to say in."""
    return [made for make in SECTIONS if (made := make(model)) is not None]


def pictures_of(model: ModelRuns) -> tuple[Picture, ...]:
    """Every picture of the report on a model, in the order of the page."""
    return join(*sections_of(model)).pictures


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
    return tag("article", headline(model), *unfinished, *sections_of(model), _provenance(model), id=f"model-{place}")


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
    return (
        f"{numbers.units(task.get('n'), 'example')}, {task.get('task')}{metric}, fingerprint {task.get('fingerprint')}"
    )


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


def evaluations(model: ModelRuns) -> Markup | None:
    """Scores of the model as it is, with chosen units off, and beside another model."""
    scored = [run for run in model.of("evaluate") if run.number("score") is not None]
    masked = [run for run in model.of("evaluate") if len(run.rows("masks")) > 1]
    paired = [run for run in model.of("compare") if None not in (run.number("before"), run.number("after"))]
    if not scored and not masked and not paired:
        return None
    columns: Columns = {
        "data": lambda run: run.data(),
        "metric": lambda run: run.metric.name,
        "score": lambda run: run.metric.score(run.number("score")),
        "95% interval": lambda run: run.metric.score_interval(run.content),
        "off:": lambda run: listing(run.texts("off"), most=20) or "none",
        "change": lambda run: run.metric.change(run.number("change")),
        "p": lambda run: numbers.p_value(run.number("p")),
    }
    pictures = [*map(_mask_chart, masked), *map(_two_models, paired)]
    return section(
        "Evaluations",
        table(columns, scored) if scored else None,
        figures(picture for picture in pictures if picture is not None),
        *map(_mask_numbers, masked),
        summary=sentences(*map(_both_models, paired)),
    )


def _mask_chart(run: RunRecord) -> Markup | None:
    """The change under each mask; nothing where the whole model was not measured, or masks are too many for rows."""
    metric, estimates = run.metric, list[Estimate]()
    for row in run.rows("masks"):
        change, off = number(row.get("change")), [str(unit) for unit in row.get("off") or ()]
        if change is None or not off:
            continue
        tip = [
            f"without {listing(off)}",
            f"change {metric.change(change)}",
            f"{metric.name} {metric.score(row['score'])}",
        ]
        name = off[0] if len(off) == 1 else f"{off[0]} + {len(off) - 1}"
        ends = number(row.get("change_low")), number(row.get("change_high"))
        estimates.append(Estimate(name, change, *ends, tip))
    if not 0 < len(estimates) <= MOST_MASKS:
        return None
    what = f"change of {metric.name}"
    chart = interval_chart(estimates, what, f"{what} with units off", 0.0)
    return figure(f"{capital(what)} with units off", chart, note=f"{run.data()}; bars are 95% intervals")


def _mask_numbers(run: RunRecord) -> Markup:
    columns: Columns = {
        "off:": lambda row: listing(row.get("off") or [], most=20) or "none",
        "score": lambda row: run.metric.score(row.get("score")),
        "95% interval": run.metric.score_interval,
        "change": lambda row: run.metric.change(row.get("change")),
    }
    return folded(f"Numbers for {len(run.rows('masks'))} masks", table(columns, run.rows("masks")))


def _two_models(run: RunRecord) -> Markup:
    """The change from one model to the other beside the loss that was allowed."""
    metric, change = run.metric, run.number("change") or 0.0
    allowed = metric.allowed(run.number("max_drop") or 0.0, run.number("before"))
    tip = [f"{metric.change(change)} (95% interval {metric.change_interval(run.content)})"]
    row = Estimate("second model", change, run.number("low"), run.number("high"), tip, allowed)
    title = f"Change of {metric.name} from the first model to the second"
    note = f"{run.data()}; the bar is the 95% interval, the tick the margin ({metric.limit(run.number('max_drop'))})"
    return figure(title, interval_chart([row], f"change of {metric.name}", title, 0.0), note=note)


def _both_models(run: RunRecord) -> str:
    before, after = (run.metric.score(run.number(key)) for key in ("before", "after"))
    same = run.number("agreement")
    alike = f"Both predict the same for {numbers.share(same, 1)} of the {run.text('agreement_of')}."
    scores = f"{capital(run.metric.name)} {before} and {after}."
    return sentences(scores, run.text("verdict"), alike if same is not None else None)


# Each takes the runs of a model and gives a section, or None if no run is about it. In the order of the page.
SECTIONS = (
    *(heads, views, one_head_per_layer, removable, layers, speed),
    *(other_data, roles, gates, causal, dynamics, evaluations),
)
