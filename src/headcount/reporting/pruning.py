"""How a model was pruned: curves, the search, and what each layer has left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headcount.heads import Head
from headcount.reporting import layer_maps, numbers
from headcount.reporting.charts import COLOURS, Bar, Dot, Series, bar_chart, line_chart
from headcount.reporting.markup import Columns, Markup, capital, figure, figures, folded, section, sentences, table
from headcount.reporting.numbers import number
from headcount.reporting.runs import ModelRuns, RunRecord, Width, mapping, rows

RANDOM_ORDER = "c6"


def removable(model: ModelRuns) -> Markup | None:
    """The metric as more and more is removed, and the cuts that `prune` tried."""
    measured = [run for run in model.of("curve") if run.rows("curves")]
    searched = [run for run in model.of("prune") if len(run.rows("tried")) > 1]
    if not measured and not searched:
        return None
    cut = next((run for run in model.cuts if run.command == "prune"), None)
    by_cost = any(run.cost for run in searched)
    return section(
        "How much can be removed" if by_cost else "How many heads can be removed",
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
        name = "heads in the chosen cut" if cut.removed_neurons else "chosen cut"
        at = (len(cut.listed("removed")) / cut.total_heads, name)
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
    """`gradient`, `gradient, raw` if its scores are not normalised as M19's are, `oracle, cross`."""
    raw = "raw" if one.get("method") == "gradient" and one.get("normalized") is False else None
    return ", ".join(str(part) for part in (one.get("method"), raw, one.get("kind")) if part)


def _dot(run: RunRecord, point: dict[str, Any], name: str) -> Dot | None:
    x, y, metric = number(point.get("pruned")), number(point.get("score")), run.metric
    if x is None or y is None:
        return None
    removed = point.get("removed")
    heads = f" ({numbers.units(len(removed), 'head')})" if isinstance(removed, list) else ""
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


def _tried_share(run: RunRecord, row: dict[str, Any]) -> float:
    """How much a cut removed: the share of the heads, or of what all units cost where they are weighed by that."""
    share = number(row.get("pruned")) if run.cost else None
    return row["removed"] / max(1, run.total_heads) if share is None else share


def _tried_name(run: RunRecord, row: dict[str, Any]) -> str:
    if run.cost is None:
        return f"{row['removed']} of {run.total_heads} heads removed"
    return (
        f"{numbers.share(_tried_share(run, row))} of the {run.cost} removed ({numbers.units(row['removed'], 'unit')})"
    )


def _interval(run: RunRecord, row: dict[str, Any]) -> str:
    return run.metric.change_interval(row, "change_low", "change_high")


def _search(run: RunRecord) -> Markup:
    metric = run.metric
    dots = [Dot(0.0, 0.0, 0.0, 0.0, ["the whole model"])]
    for row in sorted(tried(run), key=lambda row: _tried_share(run, row)):
        chosen = row.get("chosen") is True
        tip = [
            _tried_name(run, row) + (": chosen" if chosen else ""),
            f"change {metric.change(row['change'])}, {metric.name} {metric.score(row.get('score'))}",
            f"95% interval {_interval(run, row)}",
        ]
        ends = number(row.get("change_low")), number(row.get("change_high"))
        dots.append(Dot(_tried_share(run, row), row["change"], *ends, tip, chosen))
    change = f"change of {metric.name}"
    of = f"; 100% is the {run.cost} of all units that can be removed" if run.cost else ""
    return figure(
        "Cuts that were tried",
        line_chart(
            [Series("search", "c0", dots)], f"{run.cost or 'heads'} removed", change, f"{change} with each cut",
            x_percent=True, level=_budget(run),
        ),
        note=f"on the selection data{of}; the ring marks the chosen cut; bands are 95% intervals",
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
        f"{numbers.units(len(tried(run)), 'cut')} and removed {run.what_was_removed}."
    )


def _search_numbers(run: RunRecord) -> Markup:
    columns: dict[str, Any] = {
        "units removed" if run.cost else "heads removed": lambda row: numbers.count(row["removed"])
    }
    if run.cost:
        columns[f"{run.cost} removed"] = lambda row: numbers.share(_tried_share(run, row), 1)
    columns |= {
        "score": lambda row: run.metric.score(row.get("score")),
        "change": lambda row: run.metric.change(row["change"]),
        "95% interval": lambda row: _interval(run, row),
    }
    return folded("Numbers of the search", table(columns, tried(run), lambda row: row.get("chosen") is True))


# ----------------------------------------------------------------------------------------------- what is left, by layer


def layers(model: ModelRuns) -> Markup | None:
    """Every layer before and after each cut, and what heads and neurons contributed to the saving."""
    cuts = [run for run in model.cuts if run.listed("removed") or run.removed_neurons]
    if not cuts:
        return None
    pictures = [
        picture
        for run in cuts
        for picture in (*_kept_maps(run, model), *_width_bars(run, model), *_contributions(run, model))
    ]
    summary = sentences(*(sentences(_by_layer(run), _saved_by_kind(run)) for run in cuts))
    return section("Layers before and after", figures(pictures), summary=summary)


def _after(run: RunRecord, model: ModelRuns) -> str:
    """Which cut a picture shows, if there are several."""
    return f" after headcount {run.command}" if len(model.of("prune", "gates")) > 1 else ""


def _kept_maps(run: RunRecord, model: ModelRuns) -> list[Markup]:
    """Every head as a cell; nothing where only neurons were removed."""
    removed, kept = run.listed("removed"), _kept(run, model)
    every = layer_maps.kinds([*kept, *removed]) if removed else []
    return [
        figure(
            f"{kind.capitalize()}{_after(run, model)}" if len(every) > 1 else f"Remaining heads{_after(run, model)}",
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


def _width_bars(run: RunRecord, model: ModelRuns) -> list[Markup]:
    """A bar for each feed-forward layer, one picture for each kind; nothing where no neurons were removed."""
    by_kind: dict[str, list[Width]] = {}
    for width in run.widths if run.removed_neurons else ():
        by_kind.setdefault(width.kind, []).append(width)
    return [
        figure(
            f"Remaining neurons{f': {kind}' if len(by_kind) > 1 else ''}{_after(run, model)}",
            bar_chart([_bar(width) for width in widths], f"{kind}: remaining neurons, layer by layer"),
            note="rows are layers; bars are filled as far as neurons are kept",
        )
        for kind, widths in by_kind.items()
    ]


def _bar(width: Width) -> Bar:
    kept = width.left / max(1, width.before)
    tip = [f"{width.kind}.{width.layer}", f"{width.left:,} of {width.before:,} neurons kept ({kept:.0%})"]
    return Bar(str(width.layer), width.left, width.before, f"{width.before} → {width.left}", tip)


def _saved(run: RunRecord) -> dict[str, float]:
    """The share of all FLOPs that each kind of unit saved."""
    shares = {kind: number(share) for kind, share in mapping(run.content.get("saved")).items()}
    return {str(kind): share for kind, share in shares.items() if share is not None and share > 0}


def _contributions(run: RunRecord, model: ModelRuns) -> list[Markup]:
    """What each kind of unit contributed to the FLOPs that were saved, beside what is left of them."""
    saved = _saved(run)
    if not saved or not run.is_for_speed:
        return []
    parts = [(f"saved by {kind}", share, COLOURS[place]) for place, (kind, share) in enumerate(saved.items())]
    parts.append(("left", 1 - sum(saved.values()), RANDOM_ORDER))
    bars = [
        Bar(name, share, 1.0, numbers.share(share, 1), [name, f"{numbers.share(share, 1)} of all FLOPs"], colour)
        for name, share, colour in parts
    ]
    return [
        figure(
            f"FLOPs saved{_after(run, model)}",
            bar_chart(bars, "FLOPs saved by each kind of unit, and left"),
            note="shares of the whole model's FLOPs, for one pass over test texts of median length",
        )
    ]


def _saved_by_kind(run: RunRecord) -> str:
    """`Of all FLOPs, 53% are saved: 12% by heads, 41% by neurons.`"""
    saved = _saved(run)
    if not saved or not run.is_for_speed:
        return ""
    parts = ", ".join(f"{numbers.share(share, 1)} by {kind}" for kind, share in saved.items())
    return f"Of all FLOPs, {numbers.share(sum(saved.values()), 1)} are saved: {parts}."


def _by_layer(run: RunRecord) -> str:
    heads: dict[str, int] = {}
    for head in run.listed("removed"):
        heads[head.site] = heads.get(head.site, 0) + 1
    neurons = {f"{width.kind}.{width.layer}": width.before - width.left for width in run.widths}
    most = [
        f"{max(removed, key=lambda site: removed[site])} ({max(removed.values()):,} {unit})"
        for unit, removed in (("heads", heads), ("neurons", neurons))
        if any(removed.values())
    ]
    left = run.content.get("left_by_site")
    empty = [str(site) for site, count in left.items() if count == 0] if isinstance(left, dict) else []
    flat = [f"{width.kind}.{width.layer}" for width in run.widths if not width.left]
    return sentences(
        f"headcount {run.command} removed {run.what_was_removed}, the most from {' and '.join(most)}.",
        f"No heads are left in {', '.join(empty)}, so attention is skipped there." if empty else None,
        f"No neurons are left in {', '.join(flat)}." if flat else None,
    )
