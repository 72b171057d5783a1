"""Roles: heads that look at a neighbour, at a related word, at the rarest word, or nowhere in particular (V19)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from headcount.heads import Head
from headcount.report import heatmap, words
from headcount.report.chart import figure, legend
from headcount.report.facts import Facts, data_of
from headcount.report.markup import Markup
from headcount.report.runs import Run, parse
from headcount.report.sections.layout import Columns, figures, folded, section, table

COLOURS = {"positional": "r0", "syntactic": "r1", "rare": "r2", "idle": "r3"}


def roles(facts: Facts) -> Markup | None:
    """A map of roles, and what each rests on."""
    runs = [run for run in facts.of("roles") if "heads" in run.content]
    if not runs:
        return None
    pictures = [picture for run in runs if found(run) for picture in _maps(run, facts)]
    tables = [part for run in runs for part in (_those(run), _best(run))]
    return section("Roles", figures(*pictures) if pictures else None, *tables, summary=" ".join(map(_said, runs)))


def found(run: Run) -> list[tuple[Head, dict[str, Any]]]:
    """The rows that name a role."""
    named = ((parse(row.get("head")), row) for row in run.rows("heads") if isinstance(row.get("role"), str))
    return [(head, row) for head, row in named if head is not None and row["role"] not in ("", "none")]


def _maps(run: Run, facts: Facts) -> list[Markup]:
    first: dict[Head, str] = {}
    for head, row in found(run):
        first.setdefault(head, row["role"])
    every = sorted({*first, *run.heads, *facts.heads})
    letters = {role: role[:1].upper() for role in first.values()}
    kinds = heatmap.kinds(every)
    key = [(COLOURS.get(role, "r4"), f"{letter}: {role}") for role, letter in sorted(letters.items())]
    return [
        figure(
            "Heads with a role" + (f": {kind}" if len(kinds) > 1 else ""),
            heatmap.grid(
                [head for head in every if head.kind == kind],
                lambda head: COLOURS.get(first[head], "r4") if head in first else "none",
                facts.tip,
                f"{kind} heads and their roles",
                letter=lambda head: letters.get(first.get(head, ""), ""),
                width=facts.width(kind),
            ),
            legend(key),
            note="rows are layers, columns heads",
        )
        for kind in kinds
    ]


def _said(run: Run) -> str:
    counted = Counter(row["role"] for _, row in found(run))
    if not counted:
        closest = "; the table has those that come closest" if run.rows("best") else ""
        return f"No head was found to have a role on {data_of(run)}{closest}."
    listed = ", ".join(f"{n} {role}" for role, n in counted.most_common())
    return f"On {data_of(run)}: {listed}."


def _those(run: Run) -> Markup | None:
    """The heads that have a role."""
    return folded("What each role rests on", _numbers(found(run))) if found(run) else None


def _best(run: Run) -> Markup | None:
    """The head that comes closest to each role, whether or not it has it: V19 table 1."""
    best = [(row.get("head"), row) for row in run.rows("best") if isinstance(row.get("role"), str)]
    if not best:
        return None
    return folded("The best head of every role", _numbers(best)) if found(run) else _numbers(best)


def _numbers(pairs: Sequence[tuple[Any, dict[str, Any]]]) -> Markup:
    columns: Columns = {
        "head": lambda pair: pair[0],
        "role:": lambda pair: pair[1]["role"],
        "detail:": lambda pair: "" if pair[1].get("detail") is None else pair[1]["detail"],
        "score": lambda pair: words.share(pair[1].get("score"), 1),
        "95% interval": lambda pair: words.ends(pair[1], lambda end: words.share(end, 1), "low", "high"),
        "baseline": lambda pair: words.share(pair[1].get("baseline"), 1),
    }
    return table(columns, pairs)
