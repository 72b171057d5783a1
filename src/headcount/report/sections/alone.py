"""One head left per layer: M19's all-but-one ablation."""

from __future__ import annotations

from typing import Any

from headcount.report import words
from headcount.report.chart import figure
from headcount.report.facts import Facts, data_of
from headcount.report.markup import Markup
from headcount.report.ranges import Range, range_chart
from headcount.report.runs import ALONE, Run, number, parse
from headcount.report.sections.layout import Columns, figures, folded, section, sentences, table


def alone(facts: Facts) -> Markup | None:
    """Each layer reduced to its best head."""
    runs = [run for run in facts.of(ALONE) if run.rows("layers")]
    if not runs:
        return None
    pictures = [picture for run in runs for picture in _pictures(run)]
    return section(
        "One head per layer",
        figures(*pictures),
        *(_numbers(run) for run in runs),
        summary=sentences(*map(_said, runs)),
    )


def _pictures(run: Run) -> list[Markup]:
    metric = run.word("metric")
    name = words.metric_name(metric)
    ranges: dict[str, list[Range]] = {}
    for row in run.rows("layers"):
        head, change, p = parse(row.get("best")), number(row.get("change")), number(row.get("p"))
        if head is None or change is None:
            continue
        tip = [
            f"{head.site} with {head} alone",
            f"change of {name} {words.change(change, metric)} (95% {words.interval(row, metric)})",
            f"p {words.p_value(p)}",
        ]
        surely = p is not None and p < 0.05
        colour = "c6" if not surely else "c1" if words.worse(change, metric) else "c0"
        shown = f"layer {head.layer}{' *' if surely else ''}"
        found = Range(shown, change, number(row.get("low")), number(row.get("high")), tip, colour=colour)
        ranges.setdefault(head.kind, []).append(found)
    everything = [one for some in ranges.values() for one in some]
    pictures = []
    for kind, some in ranges.items():
        title = f"Change of {name} with a single head left" + (f": {kind}" if len(ranges) > 1 else "")
        label = f"{kind}: each layer with its best head alone"
        chart = range_chart(some, f"change of {name}", label, 0.0, beside=everything)
        note = f"{data_of(run)}; bars are 95% intervals, * p < 0.05, each layer by itself"
        pictures.append(figure(title, chart, note=note))
    return pictures


def needing(run: Run) -> list[dict[str, Any]]:
    """Layers that lose significantly with one head left."""
    metric = run.word("metric")
    measured = [(row, number(row.get("p")), number(row.get("change"))) for row in run.rows("layers")]
    return [
        row
        for row, p, change in measured
        if p is not None and p < 0.05 and change is not None and words.worse(change, metric)
    ]


def _said(run: Run) -> str:
    layers, needed = len(run.rows("layers")), len(needing(run))
    apart = (
        "Heads were chosen on other data than they are tested on."
        if run.content.get("chosen_apart")
        else "The best of many heads is tested on the data it was chosen on, so p is optimistic."
    )
    return f"{layers - needed} of {layers} layers do without all heads but one: no significant loss. {apart}"


def _numbers(run: Run) -> Markup:
    metric = run.word("metric")
    columns: Columns = {
        "layer": lambda row: f"{row.get('kind')}.{row.get('layer')}",
        "kept": lambda row: row.get("best"),
        "score": lambda row: words.score(row.get("score"), metric),
        "change": lambda row: words.change(row.get("change"), metric),
        "95% interval": lambda row: words.interval(row, metric),
        "p": lambda row: words.p_value(row.get("p")),
    }
    return folded("The numbers of all layers", table(columns, run.rows("layers")))
