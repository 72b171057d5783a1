"""What each head does: maps of its effect when it is off, its importance and its role; one head left; other data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import PurePath
from typing import Any

from headcount.heads import Head
from headcount.reporting import layer_maps, numbers
from headcount.reporting.charts import Estimate, interval_chart, scatter_chart
from headcount.reporting.markup import (
    Columns,
    Markup,
    figure,
    figures,
    folded,
    legend,
    listing,
    section,
    sentences,
    table,
)
from headcount.reporting.numbers import number
from headcount.reporting.runs import ALL_BUT_ONE, ModelRuns, RunRecord, mapping, parse, rows

# Roles that are never found together may share a colour; grid.js has the same table.
ROLE_COLOURS = {
    "positional": "r0", "syntactic": "r1", "rare": "r2", "idle": "r3", "alignment": "r5",
    "induction": "r5", "previous token": "r0", "duplicate token": "r1", "retrieval": "r6", "copying": "r2",
    "sink": "r3", "streaming": "r4",
}  # fmt: skip
OTHER_ROLE, ALPHA = "r4", 0.05
NEUTRAL, WORSE, BETTER = "c6", "c1", "c0"


def heads(model: ModelRuns) -> Markup | None:
    """Ablations and importance in one section: pointing at a head shows everything known about it."""
    ablations = [run for run in model.of("ablate") if run.heads]
    scores = [run for run in model.of("importance") if run.heads]
    if not ablations and not scores:
        return None
    maps = [_effect_maps(run, model) for run in ablations] + [_importance_maps(run, model) for run in scores]
    if all(len(some) == 1 for some in maps):  # one attention kind: side by side
        maps = [[picture for some in maps for picture in some]]
    return section(
        "Which heads matter",
        *map(figures, maps),
        _numbers(ablations, scores),
        summary=sentences(*map(_effects, ablations), *map(_most_important, scores)),
    )


def _maps(
    model: ModelRuns,
    heads: Iterable[Head],
    title: str,
    what: str,
    colour: Callable[[Head], str],
    key: Markup,
    note: str,
    letter: Callable[[Head], str] = lambda head: "",
) -> list[Markup]:
    """One heat map for each attention kind."""
    shown = list(heads)
    found = layer_maps.kinds(shown)
    return [
        figure(
            f"{title}: {kind}" if len(found) > 1 else title,
            layer_maps.heat_map(
                [head for head in shown if head.kind == kind], colour, model.tip, f"{kind} heads: {what}",
                letter=letter, width=model.width(kind),
            ),
            key,
            note=note,
        )
        for kind in found
    ]  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- effects


def _effect_maps(run: RunRecord, model: ModelRuns) -> list[Markup]:
    metric, strong = run.metric, significant(run)
    values = {head: number(row.get("change")) for head, row in run.heads.items()}
    most = max((abs(value) for value in values.values() if value is not None), default=0.0)

    def colour(head: Head) -> str:
        value = values[head]
        return layer_maps.diverging(value, most, value is not None and metric.is_worse(value))

    worse, better = (metric.change(-sign * metric.sign * most) for sign in (1, -1))
    ends = (f"{worse}: worse", "0", f"{better}: better") if most else ("", "0: no change", "")
    what = f"of {metric.name} without each"
    return _maps(
        model, run.heads, f"Change {what} head", f"change {what}", colour,
        layer_maps.colour_scale(layer_maps.DIVERGING, *ends),
        f"{run.data()}; rows are layers, columns are heads; \u2022 significant after correction",
        letter=lambda head: "\u2022" if head in strong else "",
    )  # fmt: skip


def significant(run: RunRecord) -> set[Head]:
    """Heads whose effect is significant after correction, as the run says."""
    if "significant" in run.content:
        return set(run.listed("significant")) & set(run.heads)
    return {head for head, row in run.heads.items() if (p := number(row.get("p_holm"))) is not None and p < 0.05}


def _effects(run: RunRecord) -> str:
    metric, total, strong = run.metric, len(run.heads), sorted(significant(run))
    if run.content.get("adaptive"):
        return _decisions(run)
    changes = {head: number(row.get("change")) or 0.0 for head, row in run.heads.items()}
    harmful = sum(metric.is_worse(changes[head]) for head in strong)
    worst = metric.worst(changes)
    found = f"none of {total} heads has a significant effect."
    if strong:
        found = (
            f"{len(strong)} of {total} heads {'has' if len(strong) == 1 else 'have'} a significant effect "
            f"({harmful} for the worse, {len(strong) - harmful} for the better): {listing(strong)}."
        )
    found = f"Ablated one at a time on {run.data()}, {found}"
    if not metric.is_worse(changes[worst]):
        return found
    return (
        f"{found} The whole model has {metric.name} {metric.score(run.number('base'))}; the largest loss is "
        f"{metric.change(changes[worst])}, without {worst}."
    )


def _decisions(run: RunRecord) -> str:
    """What an adaptive sweep decided, and how much less it evaluated than a full one."""
    found = Counter(row.get("decision") for row in run.heads.values())
    missed = sorted(head for head, row in run.heads.items() if row.get("decision") == "missed")
    named = f" ({listing(missed)})" if missed else ""
    most = (run.number("available") or 0) * len(run.heads)
    share = numbers.share((run.number("evaluated") or 0) / most) if most else numbers.MISSING
    return (
        f"Ablated one at a time on up to {run.data()}, each head until it was decided: {len(missed)} of "
        f"{len(run.heads)} heads significantly missed{named}, {found['within']} shown to be within the margin "
        f"({run.metric.limit(run.number('margin'))}), {found['undecided']} undecided, by {share} of a full sweep."
    )


# ----------------------------------------------------------------------------------------------------------- importance


def _importance_maps(run: RunRecord, model: ModelRuns) -> list[Markup]:
    key = "normalized" if run.text("order_by") == "normalized" else "score"
    values = {head: number(row.get(key)) for head, row in run.heads.items()}
    most = max((value for value in values.values() if value is not None), default=0.0)
    method = run.text("method") or "score"
    return _maps(
        model, run.heads, f"Importance ({method})", f"importance by {method}",
        lambda head: layer_maps.sequential(values[head], most),
        layer_maps.colour_scale(layer_maps.SEQUENTIAL, "0: unimportant", "", f"{numbers.short(most)}: important"),
        f"{run.data()}; {'l2-normalized within each layer' if key == 'normalized' else 'raw scores'}",
    )  # fmt: skip


def _most_important(run: RunRecord) -> str:
    order = run.listed("order")
    if not order:
        return ""
    convergence = mapping(run.content.get("convergence"))
    stable = number(convergence.get("stable_at"))
    settled = "The order is not stable yet: score more examples." if convergence else ""
    if stable:
        settled = f"The order is stable: two estimates from {numbers.units(stable, 'example')} each agree."
    return sentences(f"The most important heads by {run.text('method')}: {listing(order[::-1][:3])}.", settled)


def _numbers(ablations: list[RunRecord], scores: list[RunRecord]) -> Markup:
    """All the numbers behind the maps."""
    columns: dict[str, Any] = {"head": str}
    for run in ablations:
        of = f", {run.data()}" if len(ablations) > 1 else ""
        shown = _DECISION_COLUMNS if run.content.get("adaptive") else _EFFECT_COLUMNS
        columns |= {f"{name}{of}": partial(cell, run) for name, cell in shown.items()}
    for run in scores:
        columns[f"importance ({run.text('method') or 'score'})"] = partial(_score, run)
    every = sorted({head for run in [*ablations, *scores] for head in run.heads})
    strong = {head for run in ablations for head in significant(run)}
    return folded(f"Numbers for all {len(every)} heads", table(columns, every, lambda head: head in strong))


def _row(run: RunRecord, head: Head) -> dict[str, Any]:
    return run.heads.get(head, {})


def _score(run: RunRecord, head: Head) -> str:
    return numbers.short(_row(run, head).get("score"))


_EFFECT_COLUMNS: dict[str, Callable[[RunRecord, Head], str]] = {
    "change": lambda run, head: run.metric.change(_row(run, head).get("change")),
    "95% interval": lambda run, head: run.metric.change_interval(_row(run, head)),
    "p": lambda run, head: numbers.p_value(_row(run, head).get("p")),
    "p (Holm)": lambda run, head: numbers.p_value(_row(run, head).get("p_holm")),
}
_DECISION_COLUMNS = {name: _EFFECT_COLUMNS[name] for name in ("change", "95% interval")} | {
    "examples": lambda run, head: numbers.count(_row(run, head).get("examples")),
    "decision": lambda run, head: _row(run, head).get("decision") or "",
}


# ---------------------------------------------------------------------------------------------------------------- roles


def roles(model: ModelRuns) -> Markup | None:
    """Heads that attend to a neighbour, to a related word, to the rarest word, or to nothing in particular (V19)."""
    runs = [run for run in model.of("roles") if "heads" in run.content]
    if not runs:
        return None
    maps = [picture for run in runs if with_role(run) for picture in _role_maps(run, model)]
    tables = [part for run in runs for part in (_role_numbers(run), _closest(run))]
    return section("Roles", figures(maps), *tables, summary=sentences(*map(_roles_found, runs)))


def with_role(run: RunRecord) -> list[tuple[Head, dict[str, Any]]]:
    """Heads that have a role, each with the row that says so."""
    named = ((parse(row.get("head")), row) for row in run.rows("heads") if isinstance(row.get("role"), str))
    return [(head, row) for head, row in named if head is not None and row["role"] not in ("", "none")]


def _role_maps(run: RunRecord, model: ModelRuns) -> list[Markup]:
    first: dict[Head, str] = {}
    for head, row in with_role(run):
        first.setdefault(head, row["role"])
    letters = _letters(sorted(set(first.values())))
    key = [(ROLE_COLOURS.get(role, OTHER_ROLE), f"{letter}: {role}") for role, letter in sorted(letters.items())]
    return _maps(
        model, sorted({*first, *run.heads, *model.heads}), "Heads with a role", "roles",
        lambda head: ROLE_COLOURS.get(first[head], OTHER_ROLE) if head in first else "none",
        legend(key),
        "rows are layers, columns are heads",
        letter=lambda head: letters.get(first.get(head, ""), ""),
    )  # fmt: skip


def _letters(roles: Iterable[str]) -> dict[str, str]:
    """A letter for each role: the first of its name that no other has.

    >>> _letters(["sink", "streaming"])
    {'sink': 'S', 'streaming': 'T'}
    """
    letters: dict[str, str] = {}
    for role in roles:
        letters[role] = next((one for one in role.upper() if one not in letters.values()), "")
    return letters


def _roles_found(run: RunRecord) -> str:
    counted = Counter(row["role"] for _, row in with_role(run))
    if not counted:
        closest = "; the table lists the heads that come closest" if run.rows("best") else ""
        return f"No head was found to have a role on {run.data()}{closest}."
    keep = [row.get("keep") for row in rows(mapping(run.content.get("cache")).get("kv_heads"))]
    return sentences(
        f"On {run.data()}: {', '.join(f'{n} {role}' for role, n in counted.most_common())}.",
        f"{keep.count('all')} of {len(keep)} key-value heads need a whole cache." if keep else "",
    )


def _role_numbers(run: RunRecord) -> Markup | None:
    return folded("Numbers for every role", table(_ROLE_COLUMNS, with_role(run))) if with_role(run) else None


def _closest(run: RunRecord) -> Markup | None:
    """The head that comes closest to each role, whether it has the role or not (V19 table 1)."""
    best = [(row.get("head"), row) for row in run.rows("best") if isinstance(row.get("role"), str)]
    shown = table(_ROLE_COLUMNS, best)
    return None if not best else folded("The best head for every role", shown) if with_role(run) else shown


_ROLE_COLUMNS: Columns = {
    "head": lambda pair: pair[0],
    "role:": lambda pair: pair[1]["role"],
    "detail:": lambda pair: "" if pair[1].get("detail") is None else pair[1]["detail"],
    "score": lambda pair: numbers.share(pair[1].get("score"), 1),
    "95% interval": lambda pair: numbers.interval(pair[1], partial(numbers.share, digits=1)),
    "baseline": lambda pair: numbers.share(pair[1].get("baseline"), 1),
}


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
    given = {"first data set": run.arguments.get("data"), "second data set": run.arguments.get("against")}
    here, there = (PurePath(name).name if isinstance(name, str) else which for which, name in given.items())
    return figure(
        f"Change of {run.metric.name} without each head",
        scatter_chart(points, here, there, digits=run.metric.digits),
        note="dashed: the same change on both",
    )


def _correlation(run: RunRecord) -> str:
    r, p, rank = run.number("pearson"), run.number("p"), run.number("spearman")
    if (remark := run.text("remark")) or r is None:
        return remark or ""
    related = "are correlated" if p is not None and p < ALPHA and r > 0 else "are not shown to be correlated"
    ranks = f", Spearman r {numbers.write(rank, '.2f')}" if rank is not None else ""
    return (
        f"The effects of {numbers.units(len(run.heads), 'head')} on the two data sets {related}: "
        f"Pearson r {numbers.write(r, '.2f')} (p {numbers.p_value(p)}){ranks}."
    )
