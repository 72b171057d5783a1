"""Which heads matter: heat maps of what turning each off changes, and of their importance."""

from __future__ import annotations

from functools import partial
from typing import Any

from headcount.heads import Head
from headcount.report import heatmap, words
from headcount.report.chart import figure
from headcount.report.facts import Facts, data_of
from headcount.report.markup import Markup
from headcount.report.runs import Run, mapping, number
from headcount.report.sections.layout import figures, folded, listing, section, sentences, table


def heads(facts: Facts) -> Markup | None:
    """Ablations and importance, in one section: pointing at a head shows all that is known of it."""
    ablations = [run for run in facts.of("ablate") if run.heads]
    scores = [run for run in facts.of("importance") if run.heads]
    if not ablations and not scores:
        return None
    pictures = [_changes(run, facts) for run in ablations] + [_importance(run, facts) for run in scores]
    if all(len(some) == 1 for some in pictures):  # one attention kind: side by side
        pictures = [[picture for some in pictures for picture in some]]
    said = sentences(*map(_what_changes, ablations), *map(_what_matters, scores))
    return section(
        "Which heads matter", *(figures(*some) for some in pictures), _numbers(facts, ablations, scores), summary=said
    )


def _changes(run: Run, facts: Facts) -> list[Markup]:
    metric = run.word("metric")
    values = {head: number(row.get("change")) for head, row in run.heads.items()}
    most = max((abs(value) for value in values.values() if value is not None), default=0.0)
    strong = significant(run)

    def colour(head: Head) -> str:
        value = values[head]
        return heatmap.diverging(value, most, value is not None and words.worse(value, metric))

    name = words.metric_name(metric)
    low, high = (words.change(end if metric in words.LOWER_IS_BETTER else -end, metric) for end in (most, -most))
    ends = (f"{low}: worse", "0", f"{high}: better") if most else ("", "0: no change at all", "")
    legend = heatmap.scale(heatmap.DIVERGING, *ends)
    found = heatmap.kinds(run.heads)
    return [
        figure(
            f"Change of {name} without each head" + (f": {kind}" if len(found) > 1 else ""),
            heatmap.grid(
                [head for head in run.heads if head.kind == kind],
                colour,
                facts.tip,
                f"{kind} heads: change of {name} without each",
                letter=lambda head: "\u2022" if head in strong else "",
                width=facts.width(kind),
            ),
            legend,
            note=f"{data_of(run)}; rows are layers, columns heads; \u2022 significant after correction",
        )
        for kind in found
    ]


def _importance(run: Run, facts: Facts) -> list[Markup]:
    key = "normalized" if run.word("order_by") == "normalized" else "score"
    values = {head: number(row.get(key)) for head, row in run.heads.items()}
    most = max((value for value in values.values() if value is not None), default=0.0)
    scale = heatmap.scale(heatmap.SEQUENTIAL, "0: unimportant", "", f"{words.short(most)}: important")
    found, method = heatmap.kinds(run.heads), run.word("method") or "score"
    within = "l2-normalised within its layer" if key == "normalized" else "raw scores"
    return [
        figure(
            f"Importance, {method}" + (f": {kind}" if len(found) > 1 else ""),
            heatmap.grid(
                [head for head in run.heads if head.kind == kind],
                lambda head: heatmap.sequential(values[head], most),
                facts.tip,
                f"{kind} heads: importance by {method}",
                width=facts.width(kind),
            ),
            scale,
            note=f"{data_of(run)}; {within}",
        )
        for kind in found
    ]


def significant(run: Run) -> set[Head]:
    """Heads whose effect is significant after correction, as the run says."""
    if "significant" in run.content:
        return set(run.listed("significant")) & set(run.heads)
    return {head for head, row in run.heads.items() if (p := number(row.get("p_holm"))) is not None and p < 0.05}


def _what_changes(run: Run) -> str:
    metric, total = run.word("metric"), len(run.heads)
    strong = sorted(significant(run))
    harmed = [head for head in strong if words.worse(number(run.heads[head].get("change")) or 0, metric)]
    changes = {head: number(row.get("change")) or 0.0 for head, row in run.heads.items()}
    sign = -1 if metric in words.LOWER_IS_BETTER else 1
    worst = min(changes, key=lambda head: sign * changes[head])
    if not strong:
        found = f"Turned off one at a time on {data_of(run)}, none of {total} heads makes a significant difference."
    else:
        found = (
            f"Turned off one at a time on {data_of(run)}, {len(strong)} of {total} heads make a significant "
            f"difference: {listing(strong)} ({len(harmed)} for the worse, {len(strong) - len(harmed)} for the better)."
        )
    return (
        f"{found} The whole model has {words.metric_name(metric)} {words.score(run.number('base'), metric)}; the "
        f"largest loss is {words.change(changes[worst], metric)}, without {worst}."
        if words.worse(changes[worst], metric)
        else found
    )


def _what_matters(run: Run) -> str:
    order = run.listed("order")
    if not order:
        return ""
    agreed = mapping(run.content.get("convergence"))
    stable = number(agreed.get("stable_at"))
    settled = (
        f"The order is stable: two estimates from {words.count(stable)} examples each agree."
        if stable
        else "The order is not stable yet: more data would help."
        if agreed
        else ""
    )
    return sentences(f"By {run.word('method')}, {listing(order[::-1][:3])} matter most.", settled)


def _numbers(facts: Facts, ablations: list[Run], scores: list[Run]) -> Markup:
    """All the numbers of the pictures."""
    columns: dict[str, Any] = {"head": str}
    for run in ablations:
        of = f", {data_of(run)}" if len(ablations) > 1 else ""
        columns |= {f"{name}{of}": partial(say, run) for name, say in _ABLATED.items()}
    for run in scores:
        columns[f"importance, {run.word('method') or 'score'}"] = partial(_score, run)
    every = sorted({head for run in [*ablations, *scores] for head in run.heads})
    strong = {head for run in ablations for head in significant(run)}
    return folded(f"The numbers of all {len(every)} heads", table(columns, every, lambda head: head in strong))


def _of(run: Run, head: Head) -> dict[str, Any]:
    return run.heads.get(head, {})


def _score(run: Run, head: Head) -> str:
    return words.short(_of(run, head).get("score"))


_ABLATED = {
    "change": lambda run, head: words.change(_of(run, head).get("change"), run.word("metric")),
    "95% interval": lambda run, head: words.interval(_of(run, head), run.word("metric")),
    "p": lambda run, head: words.p_value(_of(run, head).get("p")),
    "p (Holm)": lambda run, head: words.p_value(_of(run, head).get("p_holm")),
}
