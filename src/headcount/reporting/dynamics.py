"""Checkpoints of one training run: how far each can be pruned, and when the order of heads settles (M19 figure 5)."""

from __future__ import annotations

from typing import Any

from headcount.reporting import numbers
from headcount.reporting.charts import Dot, Estimate, Series, interval_chart, line_chart
from headcount.reporting.markup import Columns, Markup, figure, figures, section_for_each, sentences, table, tag
from headcount.reporting.numbers import number
from headcount.reporting.runs import ModelRuns, RunRecord, rows

SHADES = ("t1", "t2", "t3", "t4", "t5", "t6")  # the later the checkpoint, the darker


def dynamics(model: ModelRuns) -> Markup | None:
    """Pruning curves of every checkpoint, by importance and in random order, and when the order of heads settles."""
    runs = [run for run in model.of("track") if run.rows("checkpoints")]
    return section_for_each("During training", runs, _checkpoints_found, _checkpoint_charts, _checkpoint_numbers)


def order_settled(run: RunRecord) -> str | None:
    """When the order of heads settled, without a full stop; None if the run does not say."""
    names = _names(run)
    if "settled" not in run.content or len(names) < 2:
        return None
    if settled := run.text("settled"):
        return f"The order of heads settled at {settled}"
    return f"The order of heads had not settled before {names[-1]}"


def _names(run: RunRecord) -> list[str]:
    return [str(one.get("name")) for one in run.rows("checkpoints")]


def _checkpoints_found(run: RunRecord) -> Markup:
    names, settled, least = _names(run), order_settled(run), run.number("settled_from")
    counted = (
        f"1 checkpoint: {names[0]}." if len(names) == 1 else f"{len(names)} checkpoints: {names[0]} to {names[-1]}."
    )
    bound = f": Spearman r with {names[-1]} is {least:g} or more from there on" if least and run.text("settled") else ""
    return tag("p", sentences(counted, f"{settled}{bound}." if settled else None))


def _checkpoint_charts(run: RunRecord) -> Markup | None:
    checkpoints, name = run.rows("checkpoints"), run.metric.name
    methods = dict.fromkeys(str(point.get("method")) for one in checkpoints for point in rows(one.get("points")))
    pictures = []
    for method in methods:
        series = [
            Series(str(one.get("name")), _shade(place, len(checkpoints)), _steps(run, one, method))
            for place, one in enumerate(checkpoints)
        ]
        if not any(one.dots for one in series):
            continue
        by = {"gradient": "least important heads first", "random": "in random order"}.get(method, f"by {method}")
        chart = line_chart(
            series, "heads removed", f"{name}, relative to unpruned", f"checkpoints pruned, {by}",
            x_percent=True, y_percent=True, bands=False, whole=True, may_be_log=run.metric.relative,
        )  # fmt: skip
        pictures.append(
            figure(f"Pruned {by}", chart, note=f"{run.data()}; each checkpoint relative to itself unpruned")
        )
    return figures([*pictures, *_agreement(run)])


def _shade(place: int, of: int) -> str:
    return SHADES[round((len(SHADES) - 1) * (place / (of - 1) if of > 1 else 1))]


def _steps(run: RunRecord, one: dict[str, Any], method: str) -> list[Dot]:
    metric, dots = run.metric, []
    for point in rows(one.get("points")):
        x, y = number(point.get("pruned")), number(point.get("relative"))
        if str(point.get("method")) != method or x is None or y is None:
            continue
        tip = [
            f"{one.get('name')}: {numbers.share(x)} removed",
            f"{numbers.share(y, 1)} of its unpruned score",
            f"{metric.name} {metric.score(point.get('score'))} ({metric.score_interval(point)})",
        ]
        dots.append(Dot(x, y, None, None, tip))
    return dots


def _with_last(run: RunRecord) -> list[float | None]:
    """Spearman r of each checkpoint's order of heads with the last one's."""
    found = run.content.get("with_last")
    return [number(value) for value in found] if isinstance(found, list) else []


def _agreement(run: RunRecord) -> list[Markup]:
    estimates = [
        Estimate(name[-24:], r, None, None, [name, f"Spearman r {r:.2f} with the last checkpoint"])
        for name, r in zip(_names(run), _with_last(run), strict=False)
        if r is not None
    ]
    if not estimates:
        return []
    title = "Order of heads compared with the last checkpoint"
    return [figure(title, interval_chart(estimates, "Spearman r", title, 1.0), note="1: the same order")]


def _checkpoint_numbers(run: RunRecord) -> Markup:
    metric, agreed = run.metric, dict(enumerate(_with_last(run)))
    columns: Columns = {
        "checkpoint": lambda pair: pair[1].get("name"),
        metric.name: lambda pair: metric.score(pair[1].get("base")),
        "better than random by": lambda pair: numbers.share(pair[1].get("advantage"), 1),
        "r with the last": lambda pair: numbers.write(agreed.get(pair[0]), ".2f"),
    }
    return table(columns, enumerate(run.rows("checkpoints")))
