"""One head off at a time (M19 section 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headcount.errors import HeadcountError, unknown
from headcount.evaluation import Mask, Outcomes, evaluate
from headcount.heads import Head
from headcount.runs import RunDirectory, model_signature, open_run
from headcount.stats import SEED, Correlation, corrected, correlation, mcnemar_exact, paired_bootstrap, paired_t
from headcount.structure import Anatomy, AttentionSite, anatomy
from headcount.tasks import Task

Progress = Callable[[float], None]
Run = str | Path | RunDirectory | None


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
    outcomes = evaluate(model, task, masks, fill=fill, run=run, name=name, progress=progress)
    effects = effects_of(outcomes, [frozenset({head}) for head in heads], resamples, alpha, seed)
    return Ablation(heads, outcomes.score(), effects, outcomes, fill)


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
            chosen = outcomes = evaluate(model, task, masks, fill=fill, run=run, progress=progress)
        else:
            chosen = evaluate(model, select_task, masks, fill=fill, run=run, name="select", progress=first)
            outcomes = evaluate(model, task, masks, fill=fill, run=run, progress=second)
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


@dataclass(frozen=True, eq=False)
class Comparison:
    """The same heads' effects on two data sets, and how they go together (M19 figure 2)."""

    here: Ablation
    against: Ablation
    correlation: Correlation

    def to_json(self) -> dict[str, Any]:
        """What `headcount compare --json` says."""
        changes = zip(self.here.heads, self.here.effects.change, self.against.effects.change, strict=True)
        return {
            **measured(self.here.outcomes),
            "n_against": self.against.outcomes.values.shape[1],
            "base": self.here.base,
            "base_against": self.against.base,
            "pearson": self.correlation.pearson,
            "spearman": self.correlation.spearman,
            "p": self.correlation.pearson_p,
            "spearman_p": self.correlation.spearman_p,
            "remark": self.correlation.remark,
            "heads": [
                {"head": str(head), "change": float(here), "change_against": float(there)}
                for head, here, there in changes
            ],
        }


def compare(
    model: Any,
    task: Task,
    against: Task,
    *,
    run: Run = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Comparison:
    """Ablate every head on two data sets and correlate the effects over heads (M19 section 3.4)."""
    first, second = halves(progress)
    tasks = [task.signature(), against.signature()]
    with open_run(run, {"model": model_signature(model), "tasks": tasks, "settings": settings}) as run:
        here = ablate_each(model, task, run=run, progress=first, **settings)
        there = ablate_each(model, against, run=run, name="against", progress=second, **settings)
    return Comparison(here, there, correlation(here.effects.change, there.effects.change))


@dataclass(frozen=True)
class Effects:
    """What each mask changes: masked minus whole model, (M,) arrays, tested on the same examples.

    `p` is the exact McNemar test for accuracy and the paired bootstrap for every other metric; `p_holm` and `p_bh` are
    corrected for testing many heads. `p_t` is M19's paired t-test (accuracy only), for comparison.
    """

    score: np.ndarray
    change: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray
    p_holm: np.ndarray
    p_bh: np.ndarray
    p_t: np.ndarray | None
    test: str
    resamples: int


def effects_of(outcomes: Outcomes, masks: Sequence[Mask], resamples: int | None, alpha: float, seed: int) -> Effects:
    """Test masks against the whole model."""
    base = outcomes.of()
    masked = np.stack([outcomes.of(mask) for mask in masks]) if masks else np.zeros((0, *base.shape))
    tested = paired_bootstrap(base, masked, outcomes.metric.of_sums, resamples=resamples, alpha=alpha, seed=seed)
    p, p_t, test = tested.p, None, "paired bootstrap"
    if outcomes.metric.name == "accuracy" and bool((base[:, 0] == 1).all()):  # one right or wrong per example
        p, p_t, test = mcnemar_exact(base[:, 1], masked[..., 1]), paired_t(base[:, 1], masked[..., 1]), "exact McNemar"
    return Effects(
        score=np.asarray(outcomes.metric.of_sums(masked.sum(axis=1))),
        change=tested.change,
        low=tested.low,
        high=tested.high,
        p=p,
        p_holm=corrected(p, "holm"),
        p_bh=corrected(p, "bh"),
        p_t=p_t,
        test=test,
        resamples=tested.resamples,
    )


def measured(outcomes: Outcomes) -> dict[str, Any]:
    """What every kind of ablation says first."""
    return {**outcomes.metric.facts(), "n": outcomes.values.shape[1], "near_ties": outcomes.near_ties}


def chosen_sites(found: Anatomy, kinds: Iterable[str] | None, layers: Iterable[int] | None) -> list[AttentionSite]:
    """The sites of these kinds and layers; a kind or layer that the model lacks is refused."""
    chosen = list(found.sites_of(kinds, layers))
    if not any(site.kept for site in chosen):
        raise HeadcountError("no heads are chosen; name kinds and layers that have some")
    return chosen


def halves(progress: Progress | None) -> tuple[Progress | None, Progress | None]:
    """The progress of a first and of a second sweep."""
    if progress is None:
        return None, None
    return lambda share: progress(share / 2), lambda share: progress(0.5 + share / 2)
