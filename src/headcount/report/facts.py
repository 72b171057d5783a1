"""Everything that a model's runs say about each head, put together: what a head answers when it is pointed at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import PurePath

from headcount.heads import Head
from headcount.report import words
from headcount.report.runs import Run, mapping, number, parse


class Facts:
    """The runs of one model, and what they say about its heads."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = list(runs)

    def of(self, *commands: str) -> list[Run]:
        """Runs of these commands."""
        return [run for run in self.runs if run.command in commands]

    @cached_property
    def heads(self) -> list[Head]:
        """Every head that any run mentions."""
        found = {head for run in self.runs for head in run.heads}
        found |= {head for run in self.runs for key in ("removed", "kept") for head in run.listed(key)}
        return sorted(found)

    @cached_property
    def tips(self) -> dict[Head, list[str]]:
        """Lines about each head, without its name."""
        found: dict[Head, list[str]] = {head: [] for head in self.heads}
        for run in self.runs:
            for head, line in _said(run):
                found.setdefault(head, []).append(line)
        return found

    def tip(self, head: Head) -> list[str]:
        return [str(head), *self.tips.get(head, [])]

    def width(self, kind: str) -> int:
        """Heads in the widest layer of a kind, so that its pictures all have the same columns."""
        return 1 + max((head.index for head in self.heads if head.kind == kind), default=0)


def total_of(cut: Run) -> int:
    """All heads before a cut."""
    return len(cut.listed("removed")) + int(cut.number("left") or 0)


def _said(run: Run) -> Iterator[tuple[Head, str]]:
    metric = run.word("metric")
    if run.command == "ablate":
        for head, row in run.heads.items():
            interval = f"95% {words.interval(row, metric)}"
            change = f"{words.change(row.get('change'), metric)} {words.metric_name(metric)}"
            yield head, f"without it: {change} ({interval}), {data_of(run)}"
            yield head, f"p {words.p_value(row.get('p'))}, corrected {words.p_value(row.get('p_holm'))}"
    elif run.command == "importance":
        places = {head: place for place, head in enumerate(reversed(run.listed("order")), 1)}
        for head, row in run.heads.items():
            rank = f", number {places[head]} of {len(places)}" if head in places else ""
            share = f" ({words.short(row.get('normalized'))} in its layer)" if number(row.get("normalized")) else ""
            yield head, f"importance, {run.word('method')}: {words.short(row.get('score'))}{share}{rank}"
    elif run.command == "roles":
        for row in run.rows("heads"):
            if (named := parse(row.get("head"))) is not None and row.get("role"):
                yield named, f"role: {role_of(row)}"
    elif run.command in ("prune", "gates"):
        for head in run.listed("removed"):
            yield head, f"removed by {run.command}"


def role_of(row: dict[str, object]) -> str:
    """A role in words: `syntactic nsubj, 0.52 (baseline 0.35)`."""
    detail = f" {row['detail']}" if isinstance(row.get("detail"), (str, int)) else ""
    baseline = f" (baseline {words.share(row['baseline'])})" if number(row.get("baseline")) is not None else ""
    return f"{row.get('role')}{detail}, {words.share(row.get('score'))}{baseline}"


def data_of(run: Run, key: str = "data") -> str:
    """What a run was measured on: `872 examples of dev.tsv`."""
    said = run.arguments.get(key)
    name = PurePath(said).name if isinstance(said, str) else ""
    n = number(run.content.get("n"))
    if n is None:
        tasks = run.signature.get("tasks")
        n = number(mapping(tasks[0]).get("n")) if isinstance(tasks, list) and tasks else None
    counted = f"{words.count(n)} examples" if n is not None else ""
    return " of ".join(filter(None, [counted, name])) or "data that was not named"
