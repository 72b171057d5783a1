"""Other ablations: one head left in each layer, the same heads on other data, and chosen heads off."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from headcount.reporting import numbers
from headcount.reporting.charts import Estimate, interval_chart, scatter_chart
from headcount.reporting.markup import Columns, Markup, figure, figures, folded, listing, section, sentences, table
from headcount.reporting.numbers import number
from headcount.reporting.runs import ALL_BUT_ONE, ModelRuns, RunRecord, parse

ALPHA = 0.05
NEUTRAL, WORSE, BETTER = "c6", "c1", "c0"


def one_head_per_layer(model: ModelRuns) -> Markup | None:
    """Each layer with its best head alone (M19's all-but-one ablation)."""
    runs = [run for run in model.of(ALL_BUT_ONE) if run.rows("layers")]
    if not runs:
        return None
    return section(
        "One head per layer",
        figures(picture for run in runs for picture in _layer_charts(run)),
        *map(_layer_numbers, runs),
        summary=sentences(*map(_layers_found, runs)),
    )


def harmed_layers(run: RunRecord) -> list[dict[str, Any]]:
    """Layers that are significantly worse with one head left."""
    return [
        row
        for row in run.rows("layers")
        if _significant(row) and (change := number(row.get("change"))) is not None and run.metric.is_worse(change)
    ]


def _significant(row: dict[str, Any]) -> bool:
    p = number(row.get("p"))
    return p is not None and p < ALPHA


def _layer_charts(run: RunRecord) -> list[Markup]:
    metric = run.metric
    by_kind: dict[str, list[Estimate]] = {}
    for row in run.rows("layers"):
        head, change, sure = parse(row.get("best")), number(row.get("change")), _significant(row)
        if head is None or change is None:
            continue
        tip = [
            f"{head.site} with {head} alone",
            f"change of {metric.name} {metric.change(change)} (95% interval {metric.change_interval(row)})",
            f"p {numbers.p_value(row.get('p'))}",
        ]
        colour = NEUTRAL if not sure else WORSE if metric.is_worse(change) else BETTER
        name = f"layer {head.layer}{' *' if sure else ''}"
        estimate = Estimate(name, change, number(row.get("low")), number(row.get("high")), tip, colour=colour)
        by_kind.setdefault(head.kind, []).append(estimate)
    every = [estimate for estimates in by_kind.values() for estimate in estimates]
    title = f"Change of {metric.name} with one head left"
    return [
        figure(
            f"{title}: {kind}" if len(by_kind) > 1 else title,
            interval_chart(
                estimates, f"change of {metric.name}", f"{kind}: each layer with its best head alone", 0.0, every
            ),
            note=f"{run.data()}; bars are 95% intervals; * p < {ALPHA:g}, not corrected for the number of layers",
        )
        for kind, estimates in by_kind.items()
    ]


def _layers_found(run: RunRecord) -> str:
    layers, harmed = len(run.rows("layers")), len(harmed_layers(run))
    apart = (
        "Heads were selected and tested on different data."
        if run.content.get("chosen_apart")
        else "Heads were selected as the best and tested on the same examples, so p is optimistic."
    )
    return f"{layers - harmed} of {layers} layers show no significant loss with a single head. {apart}"


def _layer_numbers(run: RunRecord) -> Markup:
    columns: Columns = {
        "layer": lambda row: f"{row.get('kind')}.{row.get('layer')}",
        "head kept": lambda row: row.get("best"),
        "score": lambda row: run.metric.score(row.get("score")),
        "change": lambda row: run.metric.change(row.get("change")),
        "95% interval": run.metric.change_interval,
        "p": lambda row: numbers.p_value(row.get("p")),
    }
    return folded("Numbers for all layers", table(columns, run.rows("layers")))


def other_data(model: ModelRuns) -> Markup | None:
    """Whether the same heads matter on other data (M19 figure 2): a scatter for each comparison."""
    runs = [run for run in model.of("compare") if run.heads]
    if not runs:
        return None
    summary = sentences(*map(_correlation, runs))
    return section("The same heads on other data", figures(map(_scatter, runs)), summary=summary)


def _scatter(run: RunRecord) -> Markup:
    both = ((head, number(row.get("change")), number(row.get("change_against"))) for head, row in run.heads.items())
    points = [(str(head), x, y) for head, x, y in both if x is not None and y is not None]
    names = {"data": "first data set", "against": "second data set"}
    given = {key: run.arguments.get(key) for key in names}
    here, there = (PurePath(name).name if isinstance(name, str) else names[key] for key, name in given.items())
    return figure(
        f"Change of {run.metric.name} without each head",
        scatter_chart(points, here, there, digits=run.metric.digits),
        note="dashed: the same change on both",
    )


def _correlation(run: RunRecord) -> str:
    if remark := run.text("remark"):
        return remark
    r, p, rank = run.number("pearson"), run.number("p"), run.number("spearman")
    if r is None:
        return ""
    related = "are correlated" if p is not None and p < ALPHA and r > 0 else "are not shown to be correlated"
    ranks = f", Spearman r {numbers.write(rank, '.2f')}" if rank is not None else ""
    return (
        f"The effects of {len(run.heads)} heads on the two data sets {related}: "
        f"Pearson r {numbers.write(r, '.2f')} (p {numbers.p_value(p)}){ranks}."
    )


def evaluations(model: ModelRuns) -> Markup | None:
    """Scores of the model as it is, and with chosen units off."""
    runs = [run for run in model.of("evaluate") if run.number("score") is not None]
    columns: Columns = {
        "data": lambda run: run.data(),
        "metric": lambda run: run.metric.name,
        "score": lambda run: run.metric.score(run.number("score")),
        "95% interval": lambda run: run.metric.score_interval(run.content),
        "off:": lambda run: listing(run.texts("off"), most=20) or "none",
        "change": lambda run: run.metric.change(run.number("change")),
        "p": lambda run: numbers.p_value(run.number("p")),
    }
    return section("Evaluations", table(columns, runs)) if runs else None
