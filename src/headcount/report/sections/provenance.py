"""Where every number comes from, and the commands that give it again; what is not in the report."""

from __future__ import annotations

import json
from typing import Any

from headcount.report.facts import Facts
from headcount.report.markup import Markup, join, tag
from headcount.report.runs import Run, mapping
from headcount.report.sections.layout import folded, section, table

# What a report can show, by the command that measures it.
PARTS = {
    "ablate": ("what each head changes", "headcount ablate MODEL --data DEV --out RUN"),
    "importance": ("importance", "headcount importance MODEL --data TRAIN --out RUN"),
    "curve": ("pruning curves", "headcount curve MODEL --score-data TRAIN --data DEV --out RUN"),
    "prune": ("a pruned model", "headcount prune MODEL --score-data TRAIN --data DEV --max-drop 0.5 --out RUN"),
    "bench": ("speed", "headcount bench MODEL PRUNED --out RUN"),
    "compare": ("other data", "headcount compare MODEL --data IN --against OUT --out RUN"),
    "roles": ("roles", "headcount roles MODEL --data TEXT --out RUN"),
    "gates": ("gates", "headcount gates MODEL --data TRAIN --out RUN"),
    "track": ("training dynamics", "headcount track CHECKPOINTS --score-data TRAIN --data DEV --out RUN"),
}


def provenance(facts: Facts) -> Markup:
    """Signature and command of every run."""
    return section(
        "Where the numbers come from",
        *(_run(run) for run in facts.runs),
        _missing(facts),
        summary="Every number was measured by these commands; the report itself computes nothing.",
    )


def _run(run: Run) -> Markup:
    line = run.command_line
    return join(
        tag("h3", f"headcount {run.command}", None if run.finished else " (not finished)"),
        tag("pre", line) if line else None,
        _facts(run),
        folded("Signature", tag("pre", json.dumps(run.signature, indent=2, ensure_ascii=False))),
    )


def _facts(run: Run) -> Markup:
    model = mapping(run.signature.get("model"))
    tasks = run.signature.get("tasks")
    rows: list[tuple[str, Any]] = [("model", run.model), ("run", run.place or None)]
    if model.get("fingerprint"):
        rows.append(("weights", f"{model.get('class')}, fingerprint {model['fingerprint']}"))
    for task in tasks if isinstance(tasks, list) else []:
        if isinstance(task, dict):
            rows.append(("data", _task(task)))
    rows.append(("seed", run.signature.get("seed")))
    versions = mapping(run.signature.get("versions"))
    rows.append(("versions", ", ".join(f"{name} {number}" for name, number in versions.items()) or None))
    return table(["", ":"], [row for row in rows if row[1] is not None])


def _task(task: dict[str, Any]) -> str:
    said = [f"{task.get('n')} examples", f"{task.get('task')} by {task.get('metric')}"]
    return ", ".join([*said, f"fingerprint {task.get('fingerprint')}"])


def _missing(facts: Facts) -> Markup | None:
    """What was not measured, and how it would be."""
    there = {run.command.split()[0] for run in facts.runs if run.finished}
    rows = [(name, tag("code", line)) for command, (name, line) in PARTS.items() if command not in there]
    return folded("What is not in this report", table(["not measured", "how to measure it:"], rows)) if rows else None
