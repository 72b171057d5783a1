"""Where every number comes from, and the commands that give it again; what is not in the report."""

from __future__ import annotations

import json
from typing import Any

from headcount.report.facts import Facts
from headcount.report.markup import Markup, join, tag
from headcount.report.runs import NAMELESS, Run, mapping
from headcount.report.sections.layout import Columns, folded, section, table

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
PAIRS: Columns = {" ": lambda pair: pair[0], ":": lambda pair: pair[1]}


def provenance(facts: Facts) -> Markup:
    """The model and the versions, then the command, the data and the signature of every run."""
    return section(
        "Where the numbers come from",
        table(PAIRS, _shared(facts)),
        *(_run(run) for run in facts.runs),
        _missing(facts),
        summary="Every number was measured by these commands; the report itself measures nothing.",
    )


def _shared(facts: Facts) -> list[tuple[str, str]]:
    """What the runs of a model have in common; where they differ, each way once."""
    pairs = [("model", run.model) for run in facts.runs if run.model != NAMELESS]
    for run in facts.runs:
        model, versions = (mapping(run.signature.get(key)) for key in ("model", "versions"))
        if model.get("fingerprint"):
            pairs.append(("weights", f"{model.get('class')}, fingerprint {model['fingerprint']}"))
        if versions:
            pairs.append(("versions", ", ".join(f"{name} {number}" for name, number in versions.items())))
    order = ("model", "weights", "versions")
    return sorted(dict.fromkeys(pairs), key=lambda pair: order.index(pair[0]))


def _run(run: Run) -> Markup:
    line = run.command_line or f"headcount {run.command} …"
    said = [f"Kept in {run.place}"] if run.place else []
    said += [f"seed {run.signature['seed']}"] if "seed" in run.signature else []
    tasks = run.signature.get("tasks")
    said += [_task(task) for task in tasks if isinstance(task, dict)] if isinstance(tasks, list) else []
    return join(
        tag("pre", line, None if run.finished else "   # not finished"),
        tag("p", "; ".join(said), class_="note") if said else None,
        folded("Its signature", tag("pre", json.dumps(run.signature, indent=2, ensure_ascii=False))),
    )


def _task(task: dict[str, Any]) -> str:
    by = f" by {task['metric']}" if task.get("metric") else ""
    kind = f"{task.get('n')} examples, {task.get('task')}{by}"
    return f"{kind}, fingerprint {task.get('fingerprint')}"


def _missing(facts: Facts) -> Markup | None:
    """What was not measured, and how it would be."""
    there = {word for run in facts.runs if run.finished for word in run.command.split()[:1]}
    rows = [(name, tag("code", line)) for command, (name, line) in PARTS.items() if command not in there]
    columns: Columns = {"not measured": PAIRS[" "], "how:": PAIRS[":"]}
    return folded("What is not in this report", table(columns, rows)) if rows else None
