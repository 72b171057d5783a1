"""One head off at a time (M19 section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headcount.ablation.chosen import Progress, Run, chosen_sites
from headcount.ablation.effects import Effects, effects_of, measured
from headcount.anatomy import anatomy
from headcount.engine import sweep
from headcount.errors import HeadcountError, unknown
from headcount.evaluate import Outcomes
from headcount.heads import Head
from headcount.stats import SEED
from headcount.tasks import Task


@dataclass(frozen=True, eq=False)
class Ablation:
    """The effect of turning off each head: `effects` are in the order of `heads`."""

    heads: tuple[Head, ...]
    base: float
    effects: Effects
    outcomes: Outcomes
    fill: str = "zero"

    def significant(self, alpha: float = 0.05, correction: str = "holm") -> list[Head]:
        """The heads whose effect is significant after correction ("holm", "bh" or "none")."""
        known = {"holm": self.effects.p_holm, "bh": self.effects.p_bh, "none": self.effects.p}
        if correction not in known:
            raise HeadcountError(unknown("correction", correction, known))
        return [head for head, p in zip(self.heads, known[correction], strict=True) if p < alpha]

    def to_json(self, alpha: float = 0.05) -> dict[str, Any]:
        """What `headcount ablate --json` says of every head."""
        names = ("score", "change", "low", "high", "p", "p_holm", "p_bh", "p_t")
        columns = {name: column for name in names if (column := getattr(self.effects, name)) is not None}
        heads = [
            {"head": str(head), **{name: float(column[place]) for name, column in columns.items()}}
            for place, head in enumerate(self.heads)
        ]
        return {
            **measured(self.outcomes),
            "base": self.base,
            "heads": heads,
            "significant": [str(head) for head in self.significant(alpha)],
            "test": self.effects.test,
            "resamples": self.effects.resamples,
        }


def ablate_each(
    model: Any,
    task: Task,
    *,
    kinds: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    fill: str = "zero",
    resamples: int | None = None,
    alpha: float = 0.05,
    seed: int = SEED,
    run: Run = None,
    name: str = "outcomes",
    progress: Progress | None = None,
) -> Ablation:
    """Turn off every head, one at a time, and test what changes (M19 section 3.2).

    kinds, layers: only these. fill: "zero", or "mean" to put the head's mean output in its place.
    resamples: of the bootstrap; by default as many as the corrected p needs to be able to fall below alpha.
    run: a run directory, in which finished shards are kept and found again; name: of its shards. progress: called with
    the share done.
    """
    found = anatomy(model)
    heads = tuple(head for site in chosen_sites(found, kinds, layers) for head in site.heads)
    masks = [(), *([head] for head in heads)]
    outcomes = sweep(model, task, masks, fill=fill, run=run, name=name, progress=progress)
    effects = effects_of(outcomes, [frozenset({head}) for head in heads], resamples, alpha, seed)
    return Ablation(heads, outcomes.score(), effects, outcomes, fill)
