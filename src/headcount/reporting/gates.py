"""How gates were trained: gates and loss over the steps, the trade-off, and every stage (V19 section 6)."""

from __future__ import annotations

from headcount.reporting import numbers
from headcount.reporting.charts import COLOURS, Dot, Series, line_chart
from headcount.reporting.markup import (
    Columns,
    Markup,
    capital,
    figure,
    figures,
    section_for_each,
    sentences,
    table,
    tag,
)
from headcount.reporting.numbers import number
from headcount.reporting.runs import ModelRuns, RunRecord, rows


def gates(model: ModelRuns) -> Markup | None:
    """How gates closed during training, and the metric with the heads that were left."""
    runs = [run for run in model.of("gates") if run.rows("stages")]
    return section_for_each("Gate training", runs, _gates_found, _gate_charts, _stage_numbers)


def _gates_found(run: RunRecord) -> Markup:
    if not run.finished:
        return tag("p", "The training so far.")
    before, after = (run.metric.score(run.number(key)) for key in ("before", "after"))
    removed, left = len(run.listed("removed")), numbers.count(run.number("left"))
    return tag(
        "p",
        sentences(
            f"{removed} gates closed and their heads were removed; {left} heads are left.",
            f"{capital(run.metric.name)} {before} before, {after} after, on {run.data('test')}.",
            f"{numbers.share(run.number('decided'))} of the gates ended within 0.01 of 0 or 1.",
            *run.texts("remarks"),
        ),
    )


def _gate_charts(run: RunRecord) -> Markup | None:
    pictures = []
    for key, title, up in (("open", "Open gates", "gates"), ("loss", "Training loss", "loss")):
        series, before = [], 0.0  # stages follow one another, so their steps add up
        for place, stage in enumerate(run.rows("stages")):
            dots = [
                Dot(before + x, y, None, None, [f"{stage.get('name')}, step {x:g}", f"{key} {numbers.short(y)}"])
                for note in rows(stage.get("notes"))
                if (x := number(note.get("step"))) is not None and (y := number(note.get(key))) is not None
            ]
            if dots:
                series.append(Series(str(stage.get("name")), COLOURS[place % len(COLOURS)], dots))
                before = dots[-1].x
        if series:
            pictures.append(figure(title, line_chart(series, "step", up, title, bands=False)))
    return figures([*pictures, *_trade_off(run)])


def _trade_off(run: RunRecord) -> list[Markup]:
    """The metric against the heads that are left (V19 figure 7)."""
    metric, dots = run.metric, []
    for stage in run.rows("stages"):
        left, change = number(stage.get("left")), number(stage.get("change"))
        if left is not None and change is not None:
            tip = [
                f"{stage.get('name')}: {left:g} gated heads left",
                f"change of {metric.name} {metric.change(change)}",
                f"95% interval {metric.change_interval(stage)}",
            ]
            dots.append(Dot(left, change, number(stage.get("low")), number(stage.get("high")), tip))
    if len(dots) < 2:
        return []
    dots.sort(key=lambda dot: dot.x)
    label = f"{metric.name} against heads left"
    chart = line_chart([Series("", "c0", dots)], "gated heads left", f"change of {metric.name}", label)
    return [figure(capital(label), chart, note="bands are 95% intervals")]


def _stage_numbers(run: RunRecord) -> Markup:
    metric = run.metric
    columns: Columns = {
        "stage": lambda stage: stage.get("name"),
        "lambda": lambda stage: numbers.short(stage.get("price")),
        "gated heads left": lambda stage: numbers.count(stage.get("left")),
        metric.name: lambda stage: metric.score(stage.get("score")),
        "change": lambda stage: metric.change(stage.get("change")),
        "95% interval": metric.change_interval,
        "gates decided": lambda stage: numbers.share(stage.get("decided")),
    }
    return table(columns, run.rows("stages"))
