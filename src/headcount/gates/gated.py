"""What gates found: `Gated`, a plain smaller model and every stage on the way to it; `CausalGates`, what heads do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np

from headcount.errors import counted
from headcount.gates.gate_training import parse_notes
from headcount.heads import Head
from headcount.pruning import before_and_after, how_to_load, pruning_facts
from headcount.reporting import Shown
from headcount.structure import anatomy
from headcount.surgery import Evidence
from headcount.tasks import Metric

UNDECIDED = 0.5  # of the gates: if fewer are near 0 or 1 before a cut to a number of heads, the user is told
MISSED = 0.1  # of the target: if fewer or more gates are open before the cut, the user is told


@dataclass(frozen=True)
class GateStage:
    """One point of the trade-off (V19 figure 7): the price of a gate, the units left, the metric on the test data.

    price: lambda at the end. target: the number of heads to keep, if one was asked for. removed: heads one by one,
    neurons in ranges. left: of the units with gates; of: how many these are; units: what they are.
    flops, flops_left: the share of FLOPs that was asked for, if one was, and that is left.
    change, low, high: against the whole model, with the paired 95% interval.
    decided: share of gates that ended within 0.01 of 0 or 1. open_before: how many gates were expected to be open
    before the cut, which keeps exactly what was asked for. roles: how many heads of each role are left (figure 8).
    notes: how the training went, [{step, loss, open, lambda}]. went_back_to: the step whose model was kept, if every
    gate closed after it.
    """

    price: float
    target: int | None
    removed: tuple[str, ...]
    left: int
    of: int
    left_by_site: dict[str, int]
    score: float
    change: float
    low: float
    high: float
    decided: float
    open_before: float
    units: str = "heads"
    flops: float | None = None
    flops_left: float | None = None
    roles: dict[str, int] | None = None
    notes: tuple[dict[str, float], ...] = ()
    went_back_to: int | None = None

    @classmethod
    def parse(cls, content: dict[str, Any]) -> GateStage:
        """As `asdict` writes it; what is not a number raises an error here, not where it is printed."""
        given = {one.name: content[one.name] for one in fields(cls)}
        for name in ("price", "score", "change", "low", "high", "decided", "open_before"):
            given[name] = float(given[name])
        for name in ("target", "went_back_to"):
            given[name] = None if given[name] is None else int(given[name])
        for name in ("flops", "flops_left"):
            given[name] = None if given[name] is None else float(given[name])
        given["left"], given["of"], given["units"] = int(given["left"]), int(given["of"]), str(given["units"])
        given["removed"] = tuple(map(str, given["removed"]))
        given["left_by_site"] = _counts(given["left_by_site"])
        given["roles"] = None if given["roles"] is None else _counts(given["roles"])
        given["notes"] = tuple(parse_notes(given["notes"]))
        return cls(**given)

    @property
    def remark(self) -> str:
        """What the user should know about this stage, if anything."""
        if self.target is not None and abs(self.open_before - self.target) > max(1.0, MISSED * self.target):
            rate = "higher" if self.open_before > self.target else "lower"
            return (
                f"{self.name}: {self.open_before:.1f} gates were expected to be open before the cut to {self.target}, "
                f"so the cut decided what training did not; train longer, or with a {rate} learning rate of the gates."
            )
        if self.target is not None and self.decided < UNDECIDED:
            return (
                f"{self.name}: only {self.decided:.0%} of the gates ended within 0.01 of 0 or 1, so the cut decided "
                "among the others; train longer, or with a higher learning rate of the gates."
            )
        if self.went_back_to is None:
            return ""
        return (
            f"{self.name} closed every gate; the model of step {self.went_back_to} is kept, the last with an open one."
        )

    @property
    def name(self) -> str:
        """What was asked for, such as `lambda-0.05`, `heads-12` or `flops-0.5`."""
        if self.flops is not None:
            return f"flops-{self.flops:g}"
        return f"heads-{self.target}" if self.target is not None else f"lambda-{self.price:g}"

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self)}


@dataclass(frozen=True, eq=False)
class Gated(Shown):
    """The model of the last stage, its units really removed, and every stage.

    before, after: metric on held-out data; change, low, high: after minus before.
    saved: the share of all FLOPs that each kind of unit saved, on texts of the held-out data's median length.
    """

    model: Any
    removed: tuple[Head, ...]
    metric: Metric
    before: float
    test_n: int
    stages: tuple[GateStage, ...]
    remarks: tuple[str, ...] = ()
    signature: dict[str, Any] = field(default_factory=dict)
    saved: dict[str, float] = field(default_factory=dict)

    @property
    def after(self) -> float:
        """The metric of the last stage."""
        return self.stages[-1].score

    def __repr__(self) -> str:
        before, after = (self.metric.written(value) for value in (self.before, self.after))
        last = self.stages[-1]
        return f"<{last.left} of {last.of} {last.units} left by gates; {self.metric.name} {before} to {after}>"

    @property
    def left(self) -> int:
        """How many heads the model has left, of all kinds."""
        return len(anatomy(self.model).heads)

    def to_json(self) -> dict[str, Any]:
        """What `headcount gates --json` prints, without the path."""
        return {
            **pruning_facts(self),
            **{name: getattr(self.stages[-1], name) for name in ("change", "low", "high", "decided")},
            "saved": self.saved,
            "units": self.stages[-1].units.split(" and "),
            "flops_left": self.stages[-1].flops_left,
            "stages": [stage.to_json() for stage in self.stages],
            "remarks": list(self.remarks),
        }

    def report(self, path: str | None = None) -> str:
        """What `headcount gates` prints at its end."""
        digits = 2 if self.metric.points >= 1 and not self.metric.relative else 4
        name = self.metric.name
        lines = [f"{name} on {counted(self.test_n, 'held-out example')}: {self.before:.{digits}f} before."]
        for stage in self.stages:
            lines.append(
                f"  {stage.name}: {stage.left:,} of {stage.of:,} gated {stage.units} left, "
                f"{'' if stage.flops_left is None else f'{stage.flops_left:.2%} of the FLOPs, '}"
                f"{name} {stage.score:.{digits}f} "
                f"({stage.change:+.{digits}f}, 95% interval {stage.low:+.{digits}f} to {stage.high:+.{digits}f}), "
                f"{stage.open_before:.1f} gates were expected to be open before the cut"
                f"{'' if stage.target is None else f' to {stage.target}'}, "
                f"{stage.decided:.0%} of the gates within 0.01 of 0 or 1"
            )
            lines.append(f"    {_by_kind(stage.left_by_site)}")
            if stage.roles is not None:
                lines.append("    roles left: " + (", ".join(f"{n} {r}" for r, n in stage.roles.items()) or "none"))
        return "\n".join([*lines, *self.remarks, *how_to_load(path)])

    def evidence(self, data: str = "", command: Sequence[str] = ()) -> Evidence:
        """What the card of the saved model says; `data`, the name of the held-out data; `command`, the words typed."""
        last = self.stages[-1]
        measured = (self.before, self.after, last.change, last.low, last.high)
        finding = before_and_after(self.metric, self.test_n, *measured)
        return Evidence([finding], self.metric.name, self.after, self.test_n, data, command)


CAUSAL_ROLES = ("facilitating", "irrelevant", "interfering")


@dataclass(frozen=True, eq=False)
class CausalGates:
    """Whether each head helps, hinders or does not matter (Causal Head Gating, arXiv:2505.13737), over several seeds.

    opened, closed: (seeds, heads), G+ and G-, the gates pressed to open and to close. lam: the price that presses.
    """

    heads: tuple[Head, ...]
    opened: np.ndarray
    closed: np.ndarray
    lam: float
    metric: Metric
    n: int
    remarks: tuple[str, ...] = ()
    signature: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = Counter(role for role, _ in self.roles)
        return f"<{', '.join(f'{counts[role]} {role}' for role in CAUSAL_ROLES)} heads; {counted(self.seeds, 'seed')}>"

    @property
    def seeds(self) -> int:
        return len(self.opened)

    @property
    def scores(self) -> dict[str, np.ndarray]:
        """(seeds, heads) each: a head that stays open when pressed to close facilitates, one that stays closed when
        pressed to open interferes, and one that goes with the price is irrelevant."""
        return {
            "facilitating": self.closed,
            "irrelevant": self.opened * (1 - self.closed),
            "interfering": 1 - self.opened,
        }

    @property
    def roles(self) -> list[tuple[str, float]]:
        """The role of each head by most seeds, and the share of the seeds that agree."""
        scores = np.stack([self.scores[role] for role in CAUSAL_ROLES])  # (roles, seeds, heads)
        best = scores.argmax(0)  # (seeds, heads)
        votes = np.stack([(best == place).mean(0) for place in range(len(CAUSAL_ROLES))])
        chosen = (votes + 1e-6 * scores.mean(1)).argmax(0)  # of as many votes, the higher score
        return [(CAUSAL_ROLES[role], float(votes[role, place])) for place, role in enumerate(chosen)]

    def to_json(self) -> dict[str, Any]:
        """What `headcount gates --causal --json` says about every head."""
        means = {role: values.mean(0) for role, values in self.scores.items()}
        heads = [
            {"head": str(head), "role": role, **{name: float(means[name][place]) for name in CAUSAL_ROLES}}
            | {"agreement": agreement}
            for place, (head, (role, agreement)) in enumerate(zip(self.heads, self.roles, strict=True))
        ]
        counts = Counter(role for role, _ in self.roles)
        facts = {**self.metric.facts(), "n": self.n, "lambda": self.lam, "seeds": self.seeds}
        remarks = list(self.remarks)
        return {
            **facts,
            "causal_roles": {role: counts[role] for role in CAUSAL_ROLES},
            "heads": heads,
            "remarks": remarks,
        }

    def report(self) -> str:
        """What `headcount gates --causal` prints at its end."""
        lines = [f"Gates fitted on {counted(self.n, 'example')}, {counted(self.seeds, 'seed')}, lambda {self.lam:g}:"]
        for name in CAUSAL_ROLES:
            found = [(head, share) for head, (role, share) in zip(self.heads, self.roles, strict=True) if role == name]
            sure = [str(head) for head, share in found if share == 1]
            lines.append(
                f"  {counted(len(found), f'{name} head')}, {len(sure)} by every seed: {', '.join(sure) or '-'}"
            )
        return "\n".join([*lines, *self.remarks])


def roles_left(roles: Mapping[Head, str | Sequence[str]] | None, removed: set[Head]) -> dict[str, int] | None:
    """How many heads of each role are left; a head with several roles counts for each.

    >>> roles_left({Head("encoder", 0, 0): "positional", Head("encoder", 0, 1): "rare"}, {Head("encoder", 0, 1)})
    {'positional': 1, 'rare': 0}
    """
    if roles is None:
        return None
    each = [(head, role) for head, own in roles.items() for role in ([own] if isinstance(own, str) else own)]
    left = Counter(role for head, role in each if head not in removed)
    return {role: left[role] for role in sorted({role for _, role in each})}


def _counts(content: dict[str, Any]) -> dict[str, int]:
    return {str(key): int(number) for key, number in content.items()}


def _by_kind(left: dict[str, int]) -> str:
    """
    >>> _by_kind({"encoder.0": 3, "encoder.1": 1, "cross.0": 4})
    'encoder 3 1 · cross 4'
    """
    kinds: dict[str, list[str]] = {}
    for site, count in left.items():
        kinds.setdefault(site.rpartition(".")[0], []).append(str(count))
    return " · ".join(f"{kind} {' '.join(counts)}" for kind, counts in kinds.items())
