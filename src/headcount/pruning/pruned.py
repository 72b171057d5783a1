"""`Pruned`: what came out of a pruning job, with the evidence for it, and how it is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headcount.bench import Speed
from headcount.heads import Head
from headcount.pruning.curve import Point
from headcount.pruning.cut_size import Budget
from headcount.stats import NonInferiority
from headcount.structure import anatomy
from headcount.tasks import Metric


@dataclass(frozen=True, eq=False)
class Pruned:
    """A smaller model and how it was found.

    before, after: metric on the test data, which no choice was made on; change, low, high: after minus before with its
    paired 95% interval. verdict: whether the data show that the drop is within the budget.
    path: the cuts that were tried on the selection data. recovery: metric there before and after each epoch.
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
    method: str
    compensation: str
    path: tuple[Point, ...] = ()
    recovery: tuple[float, ...] = ()
    remarks: tuple[str, ...] = ()
    signature: dict[str, Any] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """How many heads are left."""
        return len(anatomy(self.model).heads)

    def to_json(self) -> dict[str, Any]:
        """What `headcount prune --json` says, but for the path."""
        return {
            **self.metric.facts(),
            "n": self.test_n,
            "removed": [str(head) for head in self.removed],
            "left": self.left,
            "kept": [str(head) for head in anatomy(self.model).heads],
            "left_by_site": {site.name: len(site.kept) for site in anatomy(self.model).sites},
            "before": self.before,
            "after": self.after,
            "change": self.change,
            "low": self.low,
            "high": self.high,
            "max_drop": self.max_drop,
            "noninferior": self.verdict.shown,
            "bound": self.verdict.bound,
            "examples_needed": self.verdict.examples_needed,
            "parameters_before": self.parameters_before,
            "parameters_after": self.parameters_after,
            "speed": None if self.speed is None else vars(self.speed),
            "method": self.method,
            "compensation": self.compensation,
            "recovery": list(self.recovery),
            "remarks": list(self.remarks),
            "tried": [
                {"removed": len(p.removed), "chosen": set(p.removed) == set(self.removed)}
                | {name: getattr(p, name) for name in ("score", "low", "high", "change", "change_low", "change_high")}
                for p in self.path
            ],
        }

    def report(self, path: str | None = None) -> str:
        """The end of `headcount prune`, in plain text."""
        lines = ["Heads left:", *_layers(self.model), ""]
        digits = 2 if self.metric.points >= 1 and not self.metric.relative else 4
        gone = len(self.removed)
        lines.append(f"{gone} of {gone + self.left} heads removed ({gone / max(1, gone + self.left):.0%}).")
        lines.append(
            f"{self.metric.name} on {self.test_n} examples that no choice was made on: "
            f"{self.before:.{digits}f} before, {self.after:.{digits}f} after "
            f"({self.change:+.{digits}f}, 95% interval {self.low:+.{digits}f} to {self.high:+.{digits}f})."
        )
        lines.append(self._verdict())
        share = self.parameters_after / self.parameters_before - 1
        lines.append(f"Parameters: {self.parameters_before:,} before, {self.parameters_after:,} after ({share:+.1%}).")
        if self.speed is not None:
            lines.append(
                f"Speed here: {self.speed.before:.0f} examples/s before, {self.speed.after:.0f} after "
                f"({self.speed.speedup:.2f} times as fast in paired rounds, "
                f"95% interval {self.speed.low:.2f} to {self.speed.high:.2f})."
            )
        lines += self.remarks
        if path is not None:
            lines += [f"Saved to {path}. Load it with:", f'  import headcount; model = headcount.load("{path}")']
        return "\n".join(lines)

    def _bound(self) -> float:
        """The largest drop that the data allow, in points."""
        budget = Budget.of(self.metric, self.max_drop, self.before)
        return budget.in_points(max(0.0, budget.drop(self.before + self.verdict.bound)))

    def _verdict(self) -> str:
        unit = "percent" if self.metric.relative else "point" if self.max_drop == 1 else "points"
        budget = f"{self.max_drop:g} {unit}"
        if self.verdict.shown:
            return f"Shown with this data: the drop is at most {budget} (one-sided 95% bound {self._bound():.2f})."
        needed = self.verdict.examples_needed
        if needed is None:
            return f"Not shown: on this data the drop is larger than {budget}, and more examples would not change that."
        return (
            f"Not shown with this much data that the drop is at most {budget}; about {needed:,} examples would show it."
        )


def _layers(model: Any) -> list[str]:
    """One line per attention kind, for example `  encoder  0: 3/12  1: 5/12`."""
    lines: dict[str, list[str]] = {}
    for site in anatomy(model).sites:
        lines.setdefault(site.kind, []).append(f"{site.layer}: {len(site.kept)}/{site.original}")
    return [f"  {kind:8}" + "  ".join(f"{text:>9}" for text in texts) for kind, texts in lines.items()]
