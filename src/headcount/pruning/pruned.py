"""`Pruned`: the result of a pruning job with the evidence for it, as JSON and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headcount.bench import Speed
from headcount.errors import counted
from headcount.heads import Head, format_units
from headcount.pruning.curve import Point
from headcount.pruning.cut_size import Budget, in_unit
from headcount.reporting import Shown
from headcount.settings import Pruning
from headcount.stats import NonInferiority
from headcount.structure import anatomy, whole_anatomy
from headcount.surgery import Evidence
from headcount.tasks import Metric

TRIED = ("score", "low", "high", "change", "change_low", "change_high", "examples")


@dataclass(frozen=True, eq=False)
class Pruned(Shown):
    """A smaller model, how it was found, and how it compares.

    before, after: metric on held-out test data; change, low, high: after minus before with its paired 95% interval.
    max_drop: the margin of the verdict, in points. verdict: whether the data show that the drop is within it.
    flops_before, flops_after: of one pass over a few test texts of median length.
    saved: the share of that arithmetic which the removed "heads" did, and the removed "neurons".
    cache_before, cache_after: bytes of keys and values per token; 0 of a model that does not generate.
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
    flops_before: int
    flops_after: int
    saved: dict[str, float]
    speed: Speed | None
    settings: Pruning
    path: tuple[Point, ...] = ()
    recovery: tuple[float, ...] = ()
    remarks: tuple[str, ...] = ()
    cache_before: int = 0
    cache_after: int = 0
    signature: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        removed = _what_was_removed(self).removesuffix(".")
        before, after = (self.metric.written(value) for value in (self.before, self.after))
        change, low, high = (self.metric.written(value, sign=True) for value in (self.change, self.low, self.high))
        shown = "" if self.verdict.shown else "not shown to be "
        return f"<{removed}; {self.metric.name} {before} to {after} ({change}, {low} to {high}), {shown}non-inferior>"

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
            "flops_before": self.flops_before,
            "flops_after": self.flops_after,
            "saved": self.saved,
            "cache_before": self.cache_before,
            "cache_after": self.cache_after,
            "units": list(self.settings.units or ()),
            "cost": self.settings.cost,
            "speed": None if self.speed is None else vars(self.speed),
            "method": self.settings.method,
            "compensation": self.settings.compensation,
            "recovery": list(self.recovery),
            "remarks": list(self.remarks),
            "tried": [
                {"removed": len(p.removed), "pruned": p.pruned, "chosen": set(p.removed) == set(self.removed)}
                | {name: getattr(p, name) for name in TRIED}
                for p in self.path
            ],
        }

    def report(self, path: str | None = None) -> str:
        """What `headcount prune` prints at the end."""
        lines = ["Units left:" if self.settings.by_cost else "Heads left:", *_units_by_layer(self), ""]
        lines += self.findings()
        return "\n".join([*lines, *self.remarks, *how_to_load(path)])

    def findings(self) -> list[str]:
        """What was removed and what was measured, a sentence each."""
        measured = (self.before, self.after, self.change, self.low, self.high)
        lines = [_what_was_removed(self), before_and_after(self.metric, self.test_n, *measured)]
        lines.append(self.verdict_in_words())
        share = self.parameters_after / self.parameters_before - 1
        lines.append(f"Parameters: {self.parameters_before:,} before, {self.parameters_after:,} after ({share:+.1%}).")
        lines.append(_flops_saved(self))
        if self.speed is not None:
            lines.append(
                f"Speed here: {self.speed.before:.0f} examples/s before, {self.speed.after:.0f} after "
                f"({self.speed.speedup:.2f} times as fast in paired rounds, "
                f"95% interval {self.speed.low:.2f} to {self.speed.high:.2f})."
            )
        before, after = self.cache_before, self.cache_after
        if before:
            lines.append(f"Cache: {before:,} bytes per token before, {after:,} after ({after / before - 1:+.1%}).")
        return lines

    def evidence(self, data: str = "", command: Sequence[str] = ()) -> Evidence:
        """What the card of the saved model says: `save(pruned.model, directory, evidence=pruned.evidence())`.

        data: the name of the held-out data. command: the words of the command line.
        """
        return Evidence(self.findings(), self.metric.name, self.after, self.test_n, data, command)

    def verdict_in_words(self) -> str:
        """The result of the non-inferiority test, in points, as the terminal and the report show it.

        `Non-inferior: drop ≤ 2 points, 95% confidence (one-sided bound 1.28).`
        Without labels: `Non-inferior: at least 98% of predictions stay the same, 95% confidence (bound 98.7%).`
        """
        budget, metric = Budget.of(self.metric, self.max_drop, self.before), self.metric
        loss = "drop" if metric.higher_is_better else "rise"
        bound = budget.in_points(max(0.0, budget.drop(self.before + self.verdict.bound)))
        digits = 2 if bound < 10 else 0  # as many as a test on few examples carries
        limit = in_unit(f"{self.max_drop:g}", metric)
        tested = f"{loss} ≤ {limit}, 95% confidence (one-sided bound {bound:.{digits}f})."
        if metric.name == "agreement":
            least = f"at least {100 * self.before - self.max_drop:g}% of predictions stay the same"
            tested = f"{least}, 95% confidence (bound {100 * self.before - bound:.1f}%)."
        if self.verdict.shown:
            return f"Non-inferior: {tested}"
        needed = self.verdict.examples_needed
        if needed is not None:
            return f"Not shown to be non-inferior: {tested} About {needed:,} examples would be needed to show it."
        measured = in_unit(f"{budget.in_points(budget.drop(self.after)):.2f}", metric)
        why = f"The measured {loss} is {measured}, so more examples would not help."
        return f"Not shown to be non-inferior: {tested} {why}"


def before_and_after(
    metric: Metric,
    n: int,
    before: float,
    after: float,
    change: float,
    low: float,
    high: float,
    of: str = "held-out example",
) -> str:
    """`accuracy on 436 held-out examples: 0.9243 before, 0.9220 after (-0.0023, 95% interval -0.0138 to +0.0092).`"""
    moved, least, most = (metric.written(value, sign=True) for value in (change, low, high))
    return (
        f"{metric.name} on {counted(n, of)}: {metric.written(before)} before, {metric.written(after)} after "
        f"({moved}, 95% interval {least} to {most})."
    )


def pruning_facts(result: Any) -> dict[str, Any]:
    """What the JSON of every result with a smaller model says: units removed and left, the metric before and after.

    `removed` and `kept` list heads one by one and neurons in ranges; `left` counts heads.
    """
    found = whole_anatomy(result.model)
    heads = [head for head in found.heads if not head.is_neuron]
    return {
        **result.metric.facts(),
        "n": result.test_n,
        "removed": written(result.model, result.removed),
        "left": len(heads),
        "kept": [str(head) for head in heads],
        "left_by_site": {site.name: len(site.kept) for site in anatomy(result.model).sites},
        "sites": [
            {"kind": site.kind, "layer": site.layer, "left": len(site.kept), "of": site.original}
            for site in found.sites
        ],
        "before": result.before,
        "after": result.after,
    }


def written(model: Any, removed: Sequence[Head]) -> list[str]:
    """Removed heads one by one and neurons in ranges."""
    heads = [str(head) for head in removed if not head.is_neuron]
    return [*heads, *format_units([head for head in removed if head.is_neuron])]


def how_to_load(path: str | None) -> list[str]:
    """The last lines of a report about a saved model; none if it was not saved.

    >>> how_to_load("small")
    ['Saved to small. Load it with:', '  import headcount; model = headcount.load("small")']
    """
    if path is None:
        return []
    return [f"Saved to {path}. Load it with:", f'  import headcount; model = headcount.load("{path}")']


def _what_was_removed(pruned: Pruned) -> str:
    """`42 of 72 heads (58%) and 6,144 of 9,216 neurons (67%) removed.`"""
    kinds = {site.unit for site in anatomy(pruned.model, pruned.settings.units or "heads").sites}
    parts = []
    for unit in sorted(kinds):  # heads before neurons
        sites = [site for site in whole_anatomy(pruned.model).sites if site.unit == unit]
        gone = sum(head.is_neuron == (unit == "neuron") for head in pruned.removed)
        total = gone + sum(len(site.kept) for site in sites)
        parts.append(f"{gone:,} of {total:,} {unit}s removed ({gone / max(1, total):.0%})")
    if "sublayers" in (pruned.settings.units or ()):
        sites = [site for site in whole_anatomy(pruned.model).sites if site.original]
        parts.append(f"{sum(not site.kept for site in sites)} of {len(sites)} sublayers whole")
    return f"{', '.join(parts)}."


def _flops_saved(pruned: Pruned) -> str:
    """`FLOPs: 2.14 times fewer (53.2% saved: 12.1% by heads, 41.1% by neurons).`"""
    saved = 1 - pruned.flops_after / max(1, pruned.flops_before)
    parts = [f"{share:.1%} by {unit}" for unit, share in pruned.saved.items() if share > 0]
    by_unit = f": {', '.join(parts)}" if len(parts) > 1 else ""
    times = pruned.flops_before / max(1, pruned.flops_after)
    return f"FLOPs: {times:.2f} times fewer ({saved:.1%} saved{by_unit})."


def _units_by_layer(pruned: Pruned) -> list[str]:
    """One line per kind of site, for example `  encoder  0: 3/12  1: 5/12`."""
    lines: dict[str, list[str]] = {}
    for site in anatomy(pruned.model, pruned.settings.units or "heads").sites:
        lines.setdefault(site.kind, []).append(f"{site.layer}: {len(site.kept)}/{site.original}")
    name, number = max(map(len, lines)), max(len(text) for texts in lines.values() for text in texts)
    return [f"  {kind:{name}}  " + "  ".join(f"{text:>{number}}" for text in texts) for kind, texts in lines.items()]
