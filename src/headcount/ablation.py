"""M19's three ablations, each a sweep with tests: one head off at a time, all but one, and one off on two data sets.

Everywhere, a change is the metric with heads off minus the metric of the whole model, on the same examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headcount.engine import Progress
from headcount.errors import HeadcountError, counted, unknown
from headcount.evaluation import DRAWS, Adaptive, Mask, Outcomes, evaluate, evaluate_until_decided
from headcount.heads import Head
from headcount.reporting import Shown
from headcount.runs import RunDirectory, model_signature, open_run
from headcount.stats import SEED, Correlation, Deciding, Effects, corrected, correlation, paired_effects
from headcount.structure import Anatomy, AttentionSite, anatomy
from headcount.tasks import Task, refuse_non_tasks

ALPHA = 0.05
MARGIN = 1.0  # points


@dataclass(frozen=True)
class AblationSettings:
    """What every ablation takes by keyword.

    kinds, layers: only the heads of these.
    fill: what a head that is off puts out, as of `evaluate`: "zero", "mean", "resample" (its output on `draws` other
        examples, drawn by the seed) or "counterfactual" (its output on the paired example of `against`).
    resamples: of the bootstrap; by default as many as a corrected p needs to be able to fall below `alpha`.
    adaptive: `ablate_each` alone: give each head examples, in an order drawn from `seed`, only until it is decided.
    margin: of an adaptive sweep, in points, 1 by default: a head is decided if its loss is shown to be within it.
    """

    kinds: Sequence[str] | None = None
    layers: Sequence[int] | None = None
    fill: str = "zero"
    against: Task | None = None
    draws: int = DRAWS
    resamples: int | None = None
    alpha: float = ALPHA
    seed: int = SEED
    adaptive: bool = False
    margin: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise HeadcountError(f"alpha is a probability above 0, not {self.alpha}", advice="change {alpha}")
        if self.margin is not None and not self.adaptive:
            raise HeadcountError("a margin is for adaptive sweeps", advice="set {adaptive}, or leave {margin} out")
        if self.margin is not None and not 0 < self.margin < float("inf"):
            raise HeadcountError(f"the margin is {self.margin:g} points", advice="give {margin} a number above 0")
        if self.adaptive and self.fill not in ("zero", "mean"):
            raise HeadcountError(
                f"an adaptive sweep fills heads with zero or mean, not {self.fill}",
                advice="change {fill}, or leave {adaptive} out",
            )
        if self.adaptive and self.resamples is not None:
            raise HeadcountError(
                "an adaptive sweep draws as many resamples as its bounds need", advice="leave {resamples} out"
            )

    @property
    def filling(self) -> dict[str, Any]:
        """What `evaluate` is told about the fill."""
        return {"fill": self.fill, "against": self.against, "draws": self.draws, "seed": self.seed}

    def effects(self, outcomes: Outcomes, masks: Sequence[Mask]) -> Effects:
        """The tests of these masks against the whole model, with these settings."""
        return effects_of(outcomes, masks, self.resamples, self.alpha, self.seed)


def ablate_each(
    model: Any,
    task: Task,
    *,
    run: str | Path | RunDirectory | None = None,
    name: str = "outcomes",
    progress: Progress | None = None,
    **settings: Any,
) -> Ablation:
    """Turn off every head, one at a time, and test what changes (M19 section 3.2).

    >>> from headcount.tasks.classification import toy_classifier
    >>> ablation = ablate_each(*toy_classifier(), layers=[1])
    >>> [str(head) for head in ablation.heads], ablation.effects.test
    (['encoder.1.0', 'encoder.1.1', 'encoder.1.2', 'encoder.1.3'], 'exact McNemar')

    run: a run directory, which keeps finished shards under `name` and resumes from them.
    progress: called with the share done, from 0 to 1.
    settings: the fields of `AblationSettings`.
    """
    chosen = AblationSettings(**settings)
    heads = tuple(head for site in chosen_sites(anatomy(model), chosen.kinds, chosen.layers) for head in site.heads)
    if chosen.adaptive:
        return _ablate_until_decided(model, task, heads, chosen, run=run, name=name, progress=progress)
    masks = [(), *([head] for head in heads)]
    outcomes = evaluate(model, task, masks, **chosen.filling, run=run, name=name, progress=progress)
    effects = chosen.effects(outcomes, [frozenset({head}) for head in heads])
    return Ablation(heads, outcomes.score(), effects, outcomes, chosen.fill)


def _ablate_until_decided(
    model: Any, task: Task, heads: tuple[Head, ...], chosen: AblationSettings, **kept: Any
) -> Ablation:
    """Give every head examples until it is decided, corrected for all heads."""
    refuse_non_tasks(task=task)
    metric = task.metric
    margin = MARGIN if chosen.margin is None else chosen.margin
    allowed, n = margin * metric.points, len(task)
    deciding = Deciding(metric, masks=len(heads), examples=n, margin=allowed, alpha=chosen.alpha, seed=chosen.seed)
    outcomes = evaluate_until_decided(model, task, [[head] for head in heads], deciding, fill=chosen.fill, **kept)
    p, bounds = deciding.bounds.p, deciding.bounds
    joint = np.minimum(1.0, len(heads) * p)  # Bonferroni: it holds for both kinds of decisions together
    effects = Effects(
        deciding.score, deciding.change, bounds.low, bounds.high, p, joint, corrected(p, "bh"), None, deciding.test, 0
    )
    adaptive = Adaptive(margin, tuple(deciding.decisions.tolist()), deciding.examples, n)
    return Ablation(heads, outcomes.score(), effects, outcomes, chosen.fill, adaptive)


@dataclass(frozen=True, eq=False)
class Ablation(Shown):
    """The effect of turning off each head; `effects` are in the order of `heads`.

    adaptive: of an adaptive sweep. There, each head's effects are those on its own examples, intervals hold jointly for
    all heads at 1 - alpha, `p` at any stopping time, `p_holm` is corrected by Bonferroni, and `outcomes` are those of
    the whole model alone.
    """

    heads: tuple[Head, ...]
    base: float
    effects: Effects
    outcomes: Outcomes
    fill: str = "zero"
    adaptive: Adaptive | None = None

    def __repr__(self) -> str:
        metric, n = self.outcomes.metric, self.outcomes.values.shape[1]
        significant = f"{len(self.significant())} significant ({'Holm' if self.adaptive is None else 'Bonferroni'})"
        base = f"{metric.name} {metric.written(self.base)}"
        return f"<{counted(len(self.heads), 'head')} ablated on {counted(n, 'example')}, {base}: {significant}>"

    def significant(self, alpha: float = ALPHA, correction: str = "holm") -> list[Head]:
        """The heads whose effect is significant after correction ("holm", "bh" or "none")."""
        known = {"holm": self.effects.p_holm, "bh": self.effects.p_bh, "none": self.effects.p}
        if correction not in known:
            raise HeadcountError(unknown("correction", correction, known))
        return [head for head, p in zip(self.heads, known[correction], strict=True) if p < alpha]

    def to_json(self, alpha: float = ALPHA) -> dict[str, Any]:
        """What `headcount ablate --json` says about every head."""
        names = ("score", "change", "low", "high", "p", "p_holm", "p_bh", "p_t")
        columns = {name: column for name in names if (column := getattr(self.effects, name)) is not None}
        heads: list[dict[str, Any]] = [
            {"head": str(head), **{name: float(column[place]) for name, column in columns.items()}}
            for place, head in enumerate(self.heads)
        ]
        answer = {
            **measured(self.outcomes),
            "base": self.base,
            "heads": heads,
            "significant": [str(head) for head in self.significant(alpha)],
            "test": self.effects.test,
            "resamples": self.effects.resamples,
        }
        if self.adaptive is not None:
            for row, decision, examples in zip(heads, self.adaptive.decisions, self.adaptive.examples, strict=True):
                row |= {"decision": decision, "examples": int(examples)}
            evaluated, available = int(self.adaptive.examples.sum()), self.adaptive.available
            answer |= {"adaptive": True, "margin": self.adaptive.margin, "evaluated": evaluated, "available": available}
        return answer


def ablate_all_but_one(
    model: Any,
    task: Task,
    select_task: Task | None = None,
    *,
    run: str | Path | RunDirectory | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> AllButOne:
    """Keep a single head of a layer, each in turn, and test the best head of each layer (M19 section 3.3).

    >>> from headcount.tasks.classification import toy_classifier
    >>> found = ablate_all_but_one(*toy_classifier())
    >>> [(layer.kind, layer.layer) for layer in found.layers], found.chosen_apart
    ([('encoder', 0), ('encoder', 1)], False)

    select_task: chooses the head on this data, so that its p on `task` is honest (M19 tables 5 and 6). Without it, or
        where the two share examples, the best of several heads is tested on data that it was chosen on, and its p is
        optimistic; `shared` of the result counts these examples.
    run, progress, settings: as for `ablate_each`.
    """
    chosen = AblationSettings(**settings)
    _refuse_adaptive(chosen, "keeping one head of a layer")
    sites = [site for site in chosen_sites(anatomy(model), chosen.kinds, chosen.layers) if site.kept]
    keeping = {head: frozenset(site.heads) - {head} for site in sites for head in site.heads}
    masks = [(), *keeping.values()]
    refuse_non_tasks(task=task, select_task=select_task or task)
    first, second = halves(progress)
    tasks = [task.signature(), None if select_task is None else select_task.signature()]
    if chosen.against is not None:
        if select_task is not None:
            raise HeadcountError("pairs belong to one data set", advice="leave out {select_task}, or change {fill}")
        tasks.append(chosen.against.signature())
    filling = [chosen.fill, chosen.draws, chosen.seed] if chosen.fill == "resample" else chosen.fill
    signature = {"model": model_signature(model), "tasks": tasks, "fill": filling, "masks": len(masks)}
    with open_run(run, signature) as run:
        if select_task is None:
            selecting = outcomes = evaluate(model, task, masks, **chosen.filling, run=run, progress=progress)
        else:
            selecting = evaluate(model, select_task, masks, **chosen.filling, run=run, name="select", progress=first)
            outcomes = evaluate(model, task, masks, **chosen.filling, run=run, progress=second)
    sign = 1 if selecting.metric.higher_is_better else -1
    best = {site.name: max(site.heads, key=lambda head: sign * selecting.score(keeping[head])) for site in sites}
    effects = chosen.effects(outcomes, [keeping[best[site.name]] for site in sites])
    base = selecting.score()
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
            changes={head: selecting.score(keeping[head]) - base for head in site.heads},
        )
        for place, site in enumerate(sites)
    )
    seen = set(task.keys() if select_task is None else select_task.keys())
    shared = [key for key in list(task.keys()) if key in seen]
    return AllButOne(outcomes.score(), results, len(shared), outcomes)


@dataclass(frozen=True)
class LayerResult:
    """One layer with a single head left: the best one, and the change with each of the others."""

    kind: str
    layer: int
    best: Head
    score: float
    change: float
    low: float
    high: float
    p: float
    changes: dict[Head, float]  # on the data that the head was chosen on


@dataclass(frozen=True, eq=False)
class AllButOne(Shown):
    """Each layer reduced to its best head: M19 tables 2 and 3, or 5 and 6 if `chosen_apart`, on other data.

    shared: how many of the examples that the heads are tested on they were also chosen on.
    """

    base: float
    layers: tuple[LayerResult, ...]
    shared: int
    outcomes: Outcomes

    @property
    def chosen_apart(self) -> bool:
        """Whether the heads were chosen on other examples than they are tested on."""
        return self.shared == 0

    def __repr__(self) -> str:
        metric, n = self.outcomes.metric, self.outcomes.values.shape[1]
        base = f"{metric.name} {metric.written(self.base)}"
        return f"<all but one head of {counted(len(self.layers), 'layer')} on {counted(n, 'example')}, {base}>"

    def to_json(self) -> dict[str, Any]:
        """What `headcount ablate --mode all-but-one --json` says about every layer."""
        names = ("kind", "layer", "score", "change", "low", "high", "p")
        layers = [
            {
                **{name: getattr(layer, name) for name in names},
                "best": str(layer.best),
                "changes": {str(head): change for head, change in layer.changes.items()},
            }
            for layer in self.layers
        ]
        return {
            **measured(self.outcomes),
            "base": self.base,
            "chosen_apart": self.chosen_apart,
            "shared": self.shared,
            "layers": layers,
        }


def compare(
    model: Any,
    task: Task,
    against: Task,
    *,
    run: str | Path | RunDirectory | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Comparison:
    """Ablate every head on two data sets and correlate the effects over heads (M19 section 3.4).

    >>> from headcount.tasks.classification import toy_classifier
    >>> model, task = toy_classifier()
    >>> both = compare(model, task, task)
    >>> len(both.here.heads), bool((both.here.effects.change == both.against.effects.change).all())
    (8, True)

    run, progress, settings: as for `ablate_each`.
    """
    refuse_non_tasks(task=task, against=against)
    _refuse_adaptive(AblationSettings(**settings), "a comparison of two data sets")
    first, second = halves(progress)
    tasks = [task.signature(), against.signature()]
    with open_run(run, {"model": model_signature(model), "tasks": tasks, "settings": settings}) as run:
        here = ablate_each(model, task, run=run, progress=first, **settings)
        there = ablate_each(model, against, run=run, name="against", progress=second, **settings)
    return Comparison(here, there, correlation(here.effects.change, there.effects.change))


@dataclass(frozen=True, eq=False)
class Comparison(Shown):
    """The same heads' effects on two data sets, and their correlation (M19 figure 2)."""

    here: Ablation
    against: Ablation
    correlation: Correlation

    def __repr__(self) -> str:
        heads = counted(len(self.here.heads), "head")
        return f"<{heads} on two data sets: Pearson r {self.correlation.pearson:.2f}>"

    def to_json(self) -> dict[str, Any]:
        """What `headcount compare --against --json` says."""
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


def _refuse_adaptive(settings: AblationSettings, what: str) -> None:
    if settings.adaptive:
        raise HeadcountError(f"{what} needs all examples for every head", advice="leave {adaptive} out")


def effects_of(
    outcomes: Outcomes, masks: Sequence[Mask], resamples: int | None = None, alpha: float = ALPHA, seed: int = SEED
) -> Effects:
    """Test masks against the whole model."""
    base = outcomes.of()
    masked = np.stack([outcomes.of(mask) for mask in masks]) if masks else np.zeros((0, *base.shape))
    return paired_effects(base, masked, outcomes.metric, resamples, alpha, seed)


def measured(outcomes: Outcomes) -> dict[str, Any]:
    """What the JSON of every ablation begins with."""
    return {**outcomes.metric.facts(), "n": outcomes.values.shape[1], "near_ties": outcomes.near_ties}


def chosen_sites(found: Anatomy, kinds: Iterable[str] | None, layers: Iterable[int] | None) -> list[AttentionSite]:
    """The sites of these kinds and layers; a kind or layer that the model lacks is refused."""
    chosen = list(found.sites_of(kinds, layers))
    if not any(site.kept for site in chosen):
        raise HeadcountError("these layers have no heads", advice="choose other {kinds} or {layers}")
    return chosen


def halves(progress: Progress | None) -> tuple[Progress | None, Progress | None]:
    """The progress of two sweeps, as parts of one."""
    if progress is None:
        return None, None
    return lambda share: progress(share / 2), lambda share: progress(0.5 + share / 2)
