"""A single head left per layer (M19 section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headcount.ablation.chosen import Progress, Run, chosen_sites, halves
from headcount.ablation.effects import effects_of, measured
from headcount.anatomy import anatomy
from headcount.engine import open_run, sweep
from headcount.evaluate import Mask, Outcomes
from headcount.heads import Head
from headcount.signature import model_signature
from headcount.stats import SEED
from headcount.tasks import Task


@dataclass(frozen=True)
class LayerResult:
    """One site with a single head left: the best one, and every other choice."""

    kind: str
    layer: int
    best: Head
    score: float
    change: float
    low: float
    high: float
    p: float
    changes: dict[Head, float]  # on the data where the head was chosen


@dataclass(frozen=True, eq=False)
class AllButOne:
    """M19 tables 2 and 3 (5 and 6 with `chosen_apart`): each layer reduced to its best head."""

    base: float
    layers: tuple[LayerResult, ...]
    chosen_apart: bool
    outcomes: Outcomes

    def to_json(self) -> dict[str, Any]:
        """What `headcount ablate --mode all-but-one --json` says of every layer."""
        names = ("kind", "layer", "score", "change", "low", "high", "p")
        layers = [
            {
                **{name: getattr(layer, name) for name in names},
                "best": str(layer.best),
                "changes": {str(head): change for head, change in layer.changes.items()},
            }
            for layer in self.layers
        ]
        told = {"base": self.base, "chosen_apart": self.chosen_apart, "layers": layers}
        return {**measured(self.outcomes), **told}


def ablate_all_but_one(
    model: Any,
    task: Task,
    select_task: Task | None = None,
    *,
    kinds: Sequence[str] | None = None,
    layers: Sequence[int] | None = None,
    fill: str = "zero",
    resamples: int | None = None,
    alpha: float = 0.05,
    seed: int = SEED,
    run: Run = None,
    progress: Progress | None = None,
) -> AllButOne:
    """Keep a single head per layer, every one in turn, and test each layer's best (M19 section 3.3).

    select_task: choose the head on this data and test it on `task`, so that the p is honest (M19 tables 5 and 6);
    without it the best of many is tested on the data that it was chosen on, and its p is optimistic.
    """
    found = anatomy(model)
    sites = [site for site in chosen_sites(found, kinds, layers) if site.kept]
    keeping = {head: frozenset(site.heads) - {head} for site in sites for head in site.heads}
    masks = [(), *keeping.values()]
    first, second = halves(progress)
    tasks = [task.signature(), None if select_task is None else select_task.signature()]
    with open_run(run, {"model": model_signature(model), "tasks": tasks, "fill": fill, "masks": len(masks)}) as run:
        if select_task is None:
            chosen = outcomes = sweep(model, task, masks, fill=fill, run=run, progress=progress)
        else:
            chosen = sweep(model, select_task, masks, fill=fill, run=run, name="select", progress=first)
            outcomes = sweep(model, task, masks, fill=fill, run=run, progress=second)
    best = {site.name: max(site.heads, key=lambda head: _goodness(chosen, keeping[head])) for site in sites}
    effects = effects_of(outcomes, [keeping[best[site.name]] for site in sites], resamples, alpha, seed)
    base = chosen.score()
    results = tuple(
        LayerResult(
            site.kind,
            site.layer,
            best[site.name],
            score=float(effects.score[place]),
            change=float(effects.change[place]),
            low=float(effects.low[place]),
            high=float(effects.high[place]),
            p=float(effects.p[place]),
            changes={head: chosen.score(keeping[head]) - base for head in site.heads},
        )
        for place, site in enumerate(sites)
    )
    return AllButOne(outcomes.score(), results, select_task is not None, outcomes)


def _goodness(outcomes: Outcomes, mask: Mask) -> float:
    return outcomes.score(mask) * (1 if outcomes.metric.higher_is_better else -1)
