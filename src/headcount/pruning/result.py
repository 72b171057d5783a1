"""`Pruned`: the result of a pruning job with the evidence for it, as JSON and in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headcount.bench import Speed
from headcount.heads import Head
from headcount.pruning.curve import Point
from headcount.pruning.cut_size import Budget
from headcount.pruning.settings import Pruning
from headcount.stats import NonInferiority
from headcount.structure import anatomy
from headcount.tasks import Metric


@dataclass(frozen=True, eq=False)
class Pruned:
    """A smaller model, how it was found, and how it compares.

    before, after: metric on held-out test data; change, low, high: after minus before with its paired 95% interval.
    max_drop: the margin of the verdict, in points. verdict: whether the data show that the drop is within it.
    path: the cuts that were measured on the selection data. recovery: metric there before and after each epoch.
    """

    model: Any
    removed: tuple[Head, ...]
    metric: Metric
    before: float
    after: float
    change: float
    low: float
    high: float
    max_drop: float
    verdict: NonInferiority
    test_n: int
    parameters_before: int
    parameters_after: int
    speed: Speed | None
    settings: Pruning
    path: tuple[Point, ...] = ()
    recovery: tuple[float, ...] = ()
    remarks: tuple[str, ...] = ()
    signature: dict[str, Any] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """How many heads are left."""
        return len(anatomy(self.model).heads)

    def to_json(self) -> dict[str, Any]:
        """What `headcount prune --json` prints, except for the path of the saved model."""
        return {
            **pruning_facts(self),
            "change": self.change,
            "low": self.low,
            "high": self.high,
            "max_drop": self.max_drop,
            "verdict": self.verdict_in_words(),
            "noninferior": self.verdict.shown,
            "bound": self.verdict.bound,
            "examples_needed": self.verdict.examples_needed,
            "parameters_before": self.parameters_before,
            "parameters_after": self.parameters_after,
            "speed": None if self.speed is None else vars(self.speed),
            "method": self.settings.method,
            "compensation": self.settings.compensation,
            "recovery": list(self.recovery),
            "remarks": list(self.remarks),
            "tried": [
                {"removed": len(p.removed), "chosen": set(p.removed) == set(self.removed)}
                | {name: getattr(p, name) for name in ("score", "low", "high", "change", "change_low", "change_high")}
                for p in self.path
            ],
        }

    def report(self, path: str | None = None) -> str:
        """What `headcount prune` prints at the end."""
        lines = ["Heads left:", *_heads_by_layer(self.model), ""]
        digits = 2 if self.metric.points >= 1 and not self.metric.relative else 4
        removed, total = len(self.removed), len(self.removed) + self.left
        lines.append(f"{removed} of {total} heads removed ({removed / max(1, total):.0%}).")
        lines.append(
            f"{self.metric.name} on {self.test_n:,} held-out examples: "
            f"{self.before:.{digits}f} before, {self.after:.{digits}f} after "
            f"({self.change:+.{digits}f}, 95% interval {self.low:+.{digits}f} to {self.high:+.{digits}f})."
        )
        lines.append(self.verdict_in_words())
        share = self.parameters_after / self.parameters_before - 1
        lines.append(f"Parameters: {self.parameters_before:,} before, {self.parameters_after:,} after ({share:+.1%}).")
        if self.speed is not None:
            lines.append(
                f"Speed here: {self.speed.before:.0f} examples/s before, {self.speed.after:.0f} after "
                f"({self.speed.speedup:.2f} times as fast in paired rounds, "
                f"95% interval {self.speed.low:.2f} to {self.speed.high:.2f})."
            )
        return "\n".join([*lines, *self.remarks, *how_to_load(path)])

    def verdict_in_words(self) -> str:
        """The result of the non-inferiority test, in points, as the terminal and the report show it.

        `Non-inferior: drop ≤ 2 points, 95% confidence (one-sided bound 1.28).`
        """
        budget, metric = Budget.of(self.metric, self.max_drop, self.before), self.metric
        loss = "drop" if metric.higher_is_better else "rise"
        bound = budget.in_points(max(0.0, budget.drop(self.before + self.verdict.bound)))
        limit = _with_unit(f"{self.max_drop:g}", metric)
        tested = f"{loss} ≤ {limit}, 95% confidence (one-sided bound {bound:.2f})."
        if self.verdict.shown:
            return f"Non-inferior: {tested}"
        needed = self.verdict.examples_needed
        if needed is not None:
            return f"Not shown to be non-inferior: {tested} About {needed:,} examples would be needed to show it."
        measured = _with_unit(f"{budget.in_points(budget.drop(self.after)):.2f}", metric)
        why = f"The measured {loss} is {measured}, so more examples would not help."
        return f"Not shown to be non-inferior: {tested} {why}"


def pruning_facts(result: Any) -> dict[str, Any]:
    """What the JSON of every result with a smaller model says: heads removed and left, the metric before and after."""
    found = anatomy(result.model)
    return {
        **result.metric.facts(),
        "n": result.test_n,
        "removed": [str(head) for head in result.removed],
        "left": len(found.heads),
        "kept": [str(head) for head in found.heads],
        "left_by_site": {site.name: len(site.kept) for site in found.sites},
        "before": result.before,
        "after": result.after,
    }


def how_to_load(path: str | None) -> list[str]:
    """The last lines of a report about a saved model; none if it was not saved.

    >>> how_to_load("small")
    ['Saved to small. Load it with:', '  import headcount; model = headcount.load("small")']
    """
    if path is None:
        return []
    return [f"Saved to {path}. Load it with:", f'  import headcount; model = headcount.load("{path}")']


def _with_unit(number: str, metric: Metric) -> str:
    return f"{number}{'%' if metric.relative else ' point' if number == '1' else ' points'}"


def _heads_by_layer(model: Any) -> list[str]:
    """One line per kind of attention, for example `  encoder  0: 3/12  1: 5/12`."""
    lines: dict[str, list[str]] = {}
    for site in anatomy(model).sites:
        lines.setdefault(site.kind, []).append(f"{site.layer}: {len(site.kept)}/{site.original}")
    return [f"  {kind:8}" + "  ".join(f"{text:>9}" for text in texts) for kind, texts in lines.items()]
