"""How heads were pruned: curves, the search for the cut, closed gates (V19 section 6), what each layer has left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headcount.heads import Head
from headcount.reporting import layer_maps, markup, numbers
from headcount.reporting.charts import Dot, Series, line_chart
from headcount.reporting.markup import Columns, Markup, capital, figure, figures, folded, section, sentences, table
from headcount.reporting.numbers import number
from headcount.reporting.runs import ModelRuns, RunRecord, rows

COLOURS = ("c0", "c1", "c2", "c3", "c4", "c5")
RANDOM_ORDER = "c6"


def removable(model: ModelRuns) -> Markup | None:
    """The metric as more and more heads are removed, and the cuts that `prune` tried."""
    measured = [run for run in model.of("curve") if run.rows("curves")]
    searched = [run for run in model.of("prune") if len(run.rows("tried")) > 1]
    if not measured and not searched:
        return None
    cut = next((run for run in model.cuts if run.command == "prune"), None)
    return section(
        "How many heads can be removed",
        figures([_curves(run, cut) for run in measured] + [_search(run) for run in searched]),
        *map(_curve_numbers, measured),
        *map(_search_numbers, searched),
        summary=sentences(*map(_how_far, measured), *map(_search_result, searched)),
    )


# --------------------------------------------------------------------------------------------------------------- curves


def _curves(run: RunRecord, cut: RunRecord | None) -> Markup:
    series = []
    for place, one in enumerate(run.rows("curves")):
        dots = [dot for point in rows(one.get("points")) if (dot := _dot(run, point, curve_name(one)))]
        colour = RANDOM_ORDER if one.get("method") == "random" else COLOURS[place % len(COLOURS)]
        series.append(Series(curve_name(one), colour, dots))
    at = None
    by_kind = any(one.get("kind") for one in run.rows("curves"))  # then the axis is a share of that kind's heads
    if cut is not None and cut.total_heads and not by_kind:
        at = (len(cut.listed("removed")) / cut.total_heads, "chosen cut")
    label = f"{run.metric.name} as heads are removed"
    return figure(
        capital(label),
        line_chart(
            series, "heads removed", run.metric.name, label,
            x_percent=True, at=at, whole=True, may_be_log=run.metric.relative,
        ),
        note=f"{run.data()}; bands are 95% intervals",
    )  # fmt: skip


def curve_name(one: dict[str, Any]) -> str:
    """`gradient`, `oracle, cross`."""
    return ", ".join(str(part) for part in (one.get("method"), one.get("kind")) if part)


def _dot(run: RunRecord, point: dict[str, Any], name: str) -> Dot | None:
    x, y, metric = number(point.get("pruned")), number(point.get("score")), run.metric
    if x is None or y is None:
        return None
    removed = point.get("removed")
    heads = f" ({len(removed)} heads)" if isinstance(removed, list) else ""
    tip = [
        f"{name}: {numbers.share(x)} removed{heads}",
        f"{metric.name} {metric.score(y)}",
        f"95% interval {metric.score_interval(point)}",
    ]
    return Dot(x, y, number(point.get("low")), number(point.get("high")), tip)


def without_loss(run: RunRecord) -> list[tuple[dict[str, Any], float]]:
    """Each curve with the share removed before the first significant loss, by the paired interval of the change."""
    best_end = "change_high" if run.metric.higher_is_better else "change_low"
    found = []
    for one in run.rows("curves"):
        last = None
        for point in rows(one.get("points")):
            best, removed = number(point.get(best_end)), number(point.get("pruned"))
            if best is None or removed is None or run.metric.is_worse(best):
                break
            last = removed
        if last is not None:
            found.append((one, last))
    return found


def _how_far(run: RunRecord) -> str:
    shares = [f"{numbers.share(removed)} ({curve_name(one)})" for one, removed in without_loss(run)]
    if not shares:
        return ""
    return (
        f"On {run.data()}, the whole model has {run.metric.name} {run.metric.score(run.number('base'))}. "
        f"Heads removed before the loss is significant: {', '.join(shares)}."
    )


def _curve_numbers(run: RunRecord) -> Markup:
    points = [{**point, "order": curve_name(one)} for one in run.rows("curves") for point in rows(one.get("points"))]
    columns: Columns = {
        "order": lambda row: row["order"],
        "removed": lambda row: numbers.share(row.get("pruned")),
        "score": lambda row: run.metric.score(row.get("score")),
        "95% interval": run.metric.score_interval,
    }
    return folded("Numbers of the curves", table(columns, points))


# --------------------------------------------------------------------------------------------------------------- search


def tried(run: RunRecord) -> list[dict[str, Any]]:
    """The cuts that `prune` measured."""
    return [row for row in run.rows("tried") if None not in (number(row.get("removed")), number(row.get("change")))]


def _interval(run: RunRecord, row: dict[str, Any]) -> str:
    return run.metric.change_interval(row, "change_low", "change_high")


def _search(run: RunRecord) -> Markup:
    metric, total = run.metric, max(1, run.total_heads)
    dots = [Dot(0.0, 0.0, 0.0, 0.0, ["the whole model"])]
    for row in tried(run):
        chosen = row.get("chosen") is True
        tip = [
            f"{row['removed']} of {total} heads removed" + (": chosen" if chosen else ""),
            f"change {metric.change(row['change'])}, {metric.name} {metric.score(row.get('score'))}",
            f"95% interval {_interval(run, row)}",
        ]
        ends = number(row.get("change_low")), number(row.get("change_high"))
        dots.append(Dot(row["removed"] / total, row["change"], *ends, tip, chosen))
    change = f"change of {metric.name}"
    return figure(
        "Cuts that were tried",
        line_chart(
            [Series("search", "c0", dots)], "heads removed", change, f"{change} with each cut",
            x_percent=True, level=_budget(run),
        ),
        note="on the selection data; the ring marks the chosen cut; bands are 95% intervals",
    )  # fmt: skip


def _budget(run: RunRecord) -> tuple[float, str] | None:
    """The largest loss that was allowed, as a change of the metric."""
    most = run.number("max_drop")
    bases = [(number(row.get("score")) or 0.0) - row["change"] for row in tried(run)]
    if most is None or not bases:
        return None
    return run.metric.allowed(most, bases[0]), f"budget: {run.metric.limit(most)}"


def _search_result(run: RunRecord) -> str:
    return (
        f"Within the budget ({run.metric.limit(run.number('max_drop'))}), {run.text('method') or 'search'} tried "
        f"{len(tried(run))} cuts and removed {len(run.listed('removed'))} of {run.total_heads} heads."
    )


def _search_numbers(run: RunRecord) -> Markup:
    columns: Columns = {
        "heads removed": lambda row: row["removed"],
        "score": lambda row: run.metric.score(row.get("score")),
        "change": lambda row: run.metric.change(row["change"]),
        "95% interval": lambda row: _interval(run, row),
    }
    return folded("Numbers of the search", table(columns, tried(run), lambda row: row.get("chosen") is True))


# ---------------------------------------------------------------------------------------------------------------- gates


def gates(model: ModelRuns) -> Markup | None:
    """How gates closed during training, and the metric with the heads that were left."""
    runs = [run for run in model.of("gates") if run.rows("stages")]
    return markup.section_for_each("Gate training", runs, _gates_found, _gate_charts, _stage_numbers)


def _gates_found(run: RunRecord) -> Markup:
    if not run.finished:
        return markup.tag("p", "The training so far.")
    before, after = (run.metric.score(run.number(key)) for key in ("before", "after"))
    removed, left = len(run.listed("removed")), numbers.count(run.number("left"))
    return markup.tag(
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


# ----------------------------------------------------------------------------------------------- what is left, by layer


def layers(model: ModelRuns) -> Markup | None:
    """Every layer before and after each cut."""
    cuts = [run for run in model.cuts if run.listed("removed")]
    if not cuts:
        return None
    maps = [picture for run in cuts for picture in _kept_maps(run, model)]
    return section("Layers before and after", figures(maps), summary=sentences(*map(_by_layer, cuts)))


def _kept_maps(run: RunRecord, model: ModelRuns) -> list[Markup]:
    removed, kept = run.listed("removed"), _kept(run, model)
    every = layer_maps.kinds([*kept, *removed])
    after = f" after headcount {run.command}" if len(model.of("prune", "gates")) > 1 else ""
    return [
        figure(
            f"{kind.capitalize()}{after}" if len(every) > 1 else f"Remaining heads{after}",
            layer_maps.kept_map(
                [head for head in kept if head.kind == kind],
                [head for head in removed if head.kind == kind],
                model.tip,
                f"{kind}: remaining heads, layer by layer",
            ),
            note="rows are layers; filled cells are kept, crossed ones removed" if kind == every[0] else None,
        )
        for kind in every
    ]


def _kept(run: RunRecord, model: ModelRuns) -> Sequence[Head]:
    """The heads that are left: as the run lists them, or all others that the model's runs mention."""
    if "kept" in run.content:
        return run.listed("kept")
    removed = set(run.listed("removed"))
    return [head for head in model.heads if head not in removed]


def _by_layer(run: RunRecord) -> str:
    sites: dict[str, int] = {}
    for head in run.listed("removed"):
        sites[head.site] = sites.get(head.site, 0) + 1
    most = max(sites, key=lambda site: sites[site])
    left = run.content.get("left_by_site")
    empty = [str(site) for site, count in left.items() if count == 0] if isinstance(left, dict) else []
    return sentences(
        f"headcount {run.command} removed {len(run.listed('removed'))} of {run.total_heads} heads, the most from "
        f"{most} ({sites[most]}).",
        f"No heads are left in {', '.join(empty)}, so attention is skipped there." if empty else None,
    )
