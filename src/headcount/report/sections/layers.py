"""Layers before and after: which heads a cut has left where."""

from __future__ import annotations

from collections.abc import Sequence

from headcount.heads import Head
from headcount.report.chart import figure
from headcount.report.facts import Facts, total_of
from headcount.report.heatmap import kinds
from headcount.report.markup import Markup
from headcount.report.runs import Run
from headcount.report.sections.layout import figures, section, sentences
from headcount.report.squares import layers_chart


def layers(facts: Facts) -> Markup | None:
    """Layers before and after, as a picture, for every cut."""
    cuts = [run for run in facts.of("prune", "gates") if run.finished and run.listed("removed")]
    if not cuts:
        return None
    pictures = [picture for run in cuts for picture in _layers(run, facts)]
    said = sentences(*(_what_is_left(run) for run in cuts))
    return section("Layers before and after", figures(*pictures), summary=said)


def _layers(run: Run, facts: Facts) -> list[Markup]:
    removed = run.listed("removed")
    kept = kept_of(run, facts)
    every = kinds([*kept, *removed])
    after = f" after headcount {run.command}" if len(facts.of("prune", "gates")) > 1 else ""
    return [
        figure(
            (f"{kind.capitalize()}{after}" if len(every) > 1 else f"Heads that are left{after}"),
            layers_chart(kept, removed, kind, facts.tips),
            note="rows are layers; filled squares stay, crossed ones are gone" if kind == every[0] else None,
        )
        for kind in every
    ]


def kept_of(run: Run, facts: Facts) -> Sequence[Head]:
    """The heads that stay: as the run says, or those that fit its counts, or those that other runs know of."""
    if "kept" in run.content:
        return run.listed("kept")
    removed = set(run.listed("removed"))
    return [head for head in facts.heads if head not in removed]


def _what_is_left(run: Run) -> str:
    sites: dict[str, list[int]] = {}
    for head in run.listed("removed"):
        sites.setdefault(head.site, []).append(head.index)
    most = max(sites, key=lambda site: len(sites[site]))
    left = run.content.get("left_by_site")
    empty = [site for site, count in left.items() if count == 0] if isinstance(left, dict) else []
    return sentences(
        f"headcount {run.command} removed {len(run.listed('removed'))} of {total_of(run)} heads, the most from {most} "
        f"({len(sites[most])}).",
        f"No head is left in {', '.join(map(str, empty))}: there attention is skipped altogether." if empty else None,
    )
