"""The results in markdown: a table for each data set, and the comparisons with the baselines."""

from __future__ import annotations

from typing import Any


def tables(results: dict[str, Any]) -> str:
    """All of it. results: what `benchmarks.pruning` writes as JSON."""
    parts = [table(one) for one in results["data"]]
    return "\n\n".join([*parts, *(versus(one) for one in results["versus"])]) + "\n"


def table(one: dict[str, Any]) -> str:
    """One data set: a row for each method and speed."""
    whole = one["whole"]
    lines = [
        f"**{one['name']}**: {whole['metric']} on {whole['n']:,} examples; unpruned {score(whole['score'], whole)}",
        "",
        "| fewer FLOPs, asked | method | FLOPs | score | points | batch 1 | batch 16 |",
        "|-|-|-|-|-|-|-|",
    ]
    for row in one["rows"]:
        if "score" not in row:
            lines.append(f"| {row['asked']:g} | {row['method']} | out of reach | | | | |")
            continue
        speeds = " | ".join(times(row["speed"][batch]) for batch in ("1", "16"))
        lines.append(
            f"| {row['asked']:g} | {row['method']} | {row['flops']:.2f} | {score(row['score'], row)} | "
            f"{interval(row['change'])} | {speeds} |"
        )
    return "\n".join(lines)


def versus(one: dict[str, Any]) -> str:
    """Ours against one baseline: per data set and speed, and pooled over data sets."""
    speeds = one["speeds"]
    head = [*(f"{speed:g}" for speed in speeds), "mean"]
    lines = [
        f"**{one['method']} against {one['against']}**, in points (paired bootstrap, 95% interval)",
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


def times(row: dict[str, float]) -> str:
    return f"{row['speedup']:.2f} [{row['low']:.2f} {row['high']:.2f}]"
