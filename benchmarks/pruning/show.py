"""The results in markdown: a table for each data set, and the comparisons with the baselines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

METHODS = {
    "heads": "heads alone", "neurons": "neurons alone", "ours": "**headcount**", "kwon": "Kwon et al.",
    "surgeon": "headcount, surgeon", "joint": "headcount, joint", "reconstruction": "headcount, reconstruction",
    "kwon-clip": "Kwon et al., clipped", "textpruner": "TextPruner",
}  # fmt: skip

UNITS = {"score": "in points", "divergence": "in hundredths of a nat nearer"}


def tables(results: dict[str, Any]) -> str:
    """All of it. results: what `benchmarks.pruning` writes as JSON."""
    parts = [table(one) for one in results["data"]]
    return "\n\n".join([*parts, *(versus(one) for one in results["versus"])]) + "\n"


def table(one: dict[str, Any]) -> str:
    """One data set: a row for each speed, a column for each method; scores, divergences, speeds."""
    whole = one["whole"]
    methods = [name for name in METHODS if any(row["method"] == name for row in one["rows"])]
    found = {(row["asked"], row["method"]): row for row in one["rows"]}
    asked = sorted({row["asked"] for row in one["rows"]})
    head = [f"| fewer FLOPs | {' | '.join(METHODS[name] for name in methods)} |", f"|-|{'-|' * len(methods)}"]

    def rows(cell: Callable[[dict[str, Any]], str]) -> list[str]:
        def shown(row: dict[str, Any] | None) -> str:
            return "" if row is None else cell(row) if "score" in row else "out of reach"

        return [f"| {flops:g} | {' | '.join(shown(found.get((flops, name))) for name in methods)} |" for flops in asked]

    return "\n".join([
        f"**{one['name']}**: {whole['metric']} on {whole['n']:,} examples; unpruned {score(whole['score'], whole)}",
        "",
        *head,
        *rows(lambda row: f"{score(row['score'], row)}, {interval(row['change'])}"),
        "",
        f"Divergence from the whole model, in hundredths of a nat ({one['name']}):",
        "",
        *head,
        *rows(lambda row: f"{100 * row['divergence']:.2f}"),
        "",
        f"How many times as fast at batch 1, and at batch 16 ({one['name']}):",
        "",
        *head,
        *rows(lambda row: ", ".join(f"{row['speed'][batch]['speedup']:.2f}" for batch in ("1", "16"))),
    ])  # fmt: skip


def versus(one: dict[str, Any]) -> str:
    """Ours against one baseline: per data set and speed, and pooled over data sets."""
    speeds, unit = one["speeds"], UNITS[one["by"]]
    head = [*(f"{speed:g}" for speed in speeds), "mean"]
    lines = [
        f"**{one['method']} against {one['against']}**, by the {one['by']}, {unit} (paired bootstrap, 95% interval)",
        "",
        f"| | {' | '.join(head)} |",
        f"|-|{'-|' * len(head)}",
    ]
    for name, found in one["data"].items():
        lines.append(f"| {name} | {' | '.join(interval(found.get(speed)) for speed in head)} |")
    cells = [
        f"z {pool['z']:+.1f}, p {pool['p']:.2g} ({pool['tests']})" if pool else ""
        for pool in map(one["pooled"].get, head)
    ]
    lines.append(f"| pooled (Stouffer; data sets) | {' | '.join(cells)} |")
    return "\n".join(lines)


def interval(change: dict[str, float] | None) -> str:
    """
    >>> interval({"change": -0.43, "low": -1.2, "high": 0.31})
    '-0.4 [-1.2 +0.3]'
    """
    return "" if change is None else f"{change['change']:+.1f} [{change['low']:+.1f} {change['high']:+.1f}]"


def score(value: float, facts: dict[str, Any]) -> str:
    return f"{value:.1f}" if facts["points"] >= 1 else f"{value:.3f}".removeprefix("0")
