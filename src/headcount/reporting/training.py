"""What training showed of heads: how gates closed (V19 section 6), which of them resist a price (Causal Head Gating),
and when heads became important (M19 figure 5).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from headcount.heads import Head
from headcount.reporting import layer_maps, numbers
from headcount.reporting.charts import COLOURS, Dot, Estimate, Series, interval_chart, line_chart
from headcount.reporting.markup import (
    Columns,
    Markup,
    capital,
    figure,
    figures,
    folded,
    legend,
    section_for_each,
    sentences,
    table,
    tag,
)
from headcount.reporting.numbers import number
from headcount.reporting.runs import CAUSAL, ModelRuns, RunRecord, mapping, rows

CAUSAL_COLOURS = {"facilitating": "r0", "irrelevant": "r3", "interfering": "r1"}
SHADES = ("t1", "t2", "t3", "t4", "t5", "t6")  # the later the checkpoint, the darker


def gates(model: ModelRuns) -> Markup | None:
    """How gates closed during training, and the metric with the heads that were left."""
    runs = [run for run in model.of("gates") if run.rows("stages")]
    return section_for_each("Gate training", runs, _gates_found, _gate_charts, _stage_numbers)


def _gates_found(run: RunRecord) -> Markup:
    if not run.finished:
        return tag("p", "The training so far.")
    before, after = (run.metric.score(run.number(key)) for key in ("before", "after"))
    removed, left = numbers.units(len(run.listed("removed")), "gate"), run.number("left")
    return tag(
        "p",
        sentences(
            f"{removed} closed and what they gated was removed; {numbers.units(left, 'head')} left.",
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


def causal(model: ModelRuns) -> Markup | None:
    """Heads that help, that hinder and that do not matter, by gates that are pressed to open and to close."""
    runs = [run for run in model.of(CAUSAL) if run.heads]
    found = {id(run): _causal_maps(run, model) for run in runs}
    return section_for_each(
        "Causal head gating", runs, _causal_found, lambda run: figures(found[id(run)]), _causal_numbers
    )


def _causal_found(run: RunRecord) -> Markup:
    counts = mapping(run.content.get("causal_roles"))
    said = ", ".join(f"{numbers.count(counts.get(role))} {role}" for role in CAUSAL_COLOURS)
    seeds, price = numbers.count(run.number("seeds")), numbers.short(run.number("lambda"))
    return tag(
        "p",
        sentences(
            f"{said} heads on {run.data()}, with lambda {price} and {seeds} seed{'' if seeds == '1' else 's'}.",
            "A facilitating head stays open when its gate is pressed to close, an interfering one stays closed when it "
            "is pressed to open, and an irrelevant one goes with the price.",
            *run.texts("remarks"),
        ),
    )


def _causal_maps(run: RunRecord, model: ModelRuns) -> list[Markup]:
    """The role of every head; a role that not all seeds agree on has a small letter."""
    role_of = {head: str(row.get("role")) for head, row in run.heads.items()}
    agreed = {head for head, row in run.heads.items() if number(row.get("agreement")) == 1}
    initials = {"facilitating": "F", "irrelevant": "", "interfering": "I"}

    def letter(head: Head) -> str:
        initial = initials.get(role_of.get(head, ""), "")
        return initial if head in agreed else initial.lower()

    pictures, found = [], layer_maps.kinds(role_of)
    for kind in found:
        chart = layer_maps.heat_map(
            [head for head in sorted(role_of) if head.kind == kind],
            lambda head: CAUSAL_COLOURS.get(role_of[head], "none"),
            model.tip,
            f"{kind} heads: causal roles",
            letter=letter,
            width=model.width(kind),
        )
        key = legend([(colour, f"{initials[role] or 'blank'}: {role}") for role, colour in CAUSAL_COLOURS.items()])
        title = f"Causal roles: {kind}" if len(found) > 1 else "Causal roles"
        note = "rows are layers, columns are heads; small letters: not all seeds agree"
        pictures.append(figure(title, chart, key, note=note))
    return pictures


def _causal_numbers(run: RunRecord) -> Markup:
    columns: Columns = {
        "head": lambda row: row.get("head"),
        "role:": lambda row: row.get("role"),
        **{role: partial(_score_of, role) for role in CAUSAL_COLOURS},
        "seeds that agree": lambda row: numbers.share(row.get("agreement")),
    }
    return folded("Numbers for every head", table(columns, run.rows("heads")))


def _score_of(role: str, row: dict[str, Any]) -> str:
    return numbers.write(row.get(role), ".2f")


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
