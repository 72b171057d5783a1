"""`evaluate`: the one engine. Every sweep, curve and search asks it what happens when heads or neurons are off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.engine import (
    Arrays,
    Engine,
    Progress,
    batches_by_length,
    device_type,
    is_finite,
    over_shards,
    tokens_for,
    using,
)
from headcount.errors import HeadcountError, UnsupportedModel, unknown
from headcount.evaluation.decoding import written_outputs
from headcount.evaluation.drafting import can_draft, drafted_outputs
from headcount.evaluation.fills import (
    DRAWS,
    FILLS,
    Fill,
    Paired,
    counterfactual,
    donated,
    fill_at,
    filled,
    mean_contexts,
    resampled,
)
from headcount.evaluation.last_position import LastPosition, find_last_position
from headcount.evaluation.outcomes import Mask, Outcomes, tied_classes
from headcount.evaluation.recording import Recording, record
from headcount.evaluation.replay import Replay, mask_values
from headcount.heads import Head
from headcount.runs import RunDirectory, model_signature, open_run, versions
from headcount.structure import Anatomy, AttentionSite, Site, anatomy, device_of, is_hooked, whole_anatomy
from headcount.surgery import refuse_wrapped, remove
from headcount.tasks import Batch, Task, digest, refuse_non_tasks


def evaluate(
    model: Any,
    task: Task,
    masks: Sequence[Iterable[Head | str] | str] | None = None,
    *,
    fill: str | Mapping[str, Tensor] = "zero",
    against: Task | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    fast: bool = True,
    tokens: int | None = None,
    stacked: int | None = None,
    run: str | Path | RunDirectory | None = None,
    name: str = "outcomes",
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Outcomes:
    """Measure a model with heads, neurons or sublayers turned off, for every mask and every example.

    >>> from headcount.tasks.text import word_tokenizer
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> from headcount.tasks import Classification
    >>> config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=20)
    >>> rows = [{"text": "a fine film", "label": 1}, {"text": "a dull film", "label": 0}]
    >>> task = Classification(rows, word_tokenizer("a fine dull film"))
    >>> outcomes = evaluate(BertForSequenceClassification(config), task, masks=[[], ["encoder.0.1"]])
    >>> outcomes.values.shape  # masks, examples, statistics: counted, right, loss
    (2, 2, 3)

    masks: sets of heads to turn off, each on its own; by default the whole model. A set may hold neurons, ranges of
        them and whole sublayers as well, as in `masked`.
    fill: what a head that is off puts out: "zero"; "mean", its mean output over the data; "resample", its output on
        other examples, `draws` of them for each, drawn by `seed`, over which the statistics are averaged;
        "counterfactual", its output on the example at the same place of `against`, a task of corrupted texts, each as
        long as its pair (activation patching); or {site: (heads, head_dim)}.
    fast: False takes the plain path for everything: one mask, one full forward pass at a time.
    tokens: per batch, padding included; by default what suits the model and its device. stacked: the same for batches
        that hold several masks. Both bound the memory.
    run: a run directory, in which finished shards are kept; the same call resumes there. Given a path, the directory
        belongs to this evaluation. Given an open `RunDirectory`, several evaluations share it, each under its own
        `name`, and each resumes by itself. Shards of another model, data or masks are never taken up.
    engine: does the work; by default the one of the surrounding `using(…)`, else this process.
    progress: called with the share done, from 0 to 1.
    """
    refuse_non_tasks(task=task, against=task if against is None else against)
    examples = _with_donors(task, fill, against, draws, seed)
    asked = read_masks(whole_anatomy(model), masks)
    task.check(model)
    with using(engine):
        tokens = tokens or tokens_for(model, device_type(model))
        signature = run_signature(model, task, asked, fill, fast, tokens)
        if fill == "resample":
            signature["draws"] = {"count": draws, "seed": seed}
        if against is not None:
            signature["against"] = against.signature()
        known = digest(signature)  # kept with every shard
        with open_run(run, signature) as directory:
            means = None if isinstance(fill, str) else fill
            if fill == "mean":
                means = mean_contexts(
                    model, task, tokens, units=units_of(asked),
                    directory=directory, name=f"{name}-means", signature=known,
                )  # fmt: skip
            work = Evaluation(asked, tokens, stacked or tokens, fast, means)
            arrays = over_shards(
                work, model, examples,
                masks=len(asked), directory=directory, name=name, signature=known, progress=progress,
            )  # fmt: skip
    return Outcomes(asked, arrays["values"].swapaxes(0, 1), task.metric, signature, int(arrays["near_ties"]))


def _with_donors(task: Task, fill: str | Mapping[str, Tensor], against: Task | None, draws: int, seed: int) -> Any:
    """The task, or, where the fill is the outputs on other examples, the task with these."""
    if isinstance(fill, str) and fill not in FILLS:
        raise HeadcountError(unknown("fill", fill, FILLS))
    if (fill == "counterfactual") != (against is not None):
        needed = (
            "counterfactual needs" if against is None else f"{fill if isinstance(fill, str) else 'this'} does not use"
        )
        raise HeadcountError(f"the fill {needed} a task of corrupted texts", advice="give both {fill} and {against}")
    if fill not in ("resample", "counterfactual"):
        return task
    if task.generates:
        raise HeadcountError(
            f"the fill {fill} is for metrics of one forward pass, and {task.metric.name} needs generated texts",
            advice="choose loss as {metric}, or change {fill}",
        )
    return resampled(task, draws, seed) if against is None else counterfactual(task, against)


def units_of(masks: Iterable[Mask]) -> tuple[str, ...]:
    """At which sites the masks turn something off."""
    return ("heads", "neurons") if any(head.is_neuron for mask in masks for head in mask) else ("heads",)


def read_masks(found: Anatomy, masks: Sequence[Iterable[Head | str] | str] | None) -> tuple[Mask, ...]:
    """The masks asked for, each a set of heads that the model has; None is the whole model."""
    if masks is not None and (isinstance(masks, str) or not isinstance(masks, Sized) or not len(masks)):
        raise HeadcountError(f"masks is {masks!r}; expected a list of sets of heads, where [[]] is the whole model")
    return tuple(frozenset(found.check(mask)) for mask in ([()] if masks is None else masks))


def run_signature(
    model: Any, task: Task, masks: Sequence[Mask], fill: str | Mapping[str, Tensor], fast: bool, tokens: int
) -> dict[str, Any]:
    """All that the outcomes depend on."""
    heads = [sorted(map(str, mask)) for mask in masks]
    said = fill if isinstance(fill, str) else {site: digest(fill[site].tolist()) for site in sorted(fill)}
    return {
        "model": model_signature(model),
        "task": task.signature(),
        "masks": {"count": len(masks), "fingerprint": digest(heads)},
        "fill": said,
        "batches": {"tokens": tokens, "fast": fast},
        "versions": versions(),
    }


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What an engine does on every shard: the statistics of its examples under every mask, (N, M, S)."""

    masks: tuple[Mask, ...]
    tokens: int
    stacked: int
    fast: bool = True
    fill: Mapping[str, Tensor] | None = None

    def summed(self, name: str) -> bool:
        return name == "near_ties"

    def fits(self, arrays: Arrays, count: int) -> bool:
        values, ties = arrays.get("values"), arrays.get("near_ties")
        if values is None or ties is None or ties.shape != () or ties.dtype.kind != "i":
            return False
        return values.ndim == 3 and values.shape[:2] == (count, len(self.masks)) and is_finite(values)

    def __call__(self, model: Any, examples: Any, progress: Progress | None = None) -> Arrays:
        task, donors = (examples.task, examples.donors) if isinstance(examples, Paired) else (examples, ())
        plan = make_plan(model, task, self.masks, fast=self.fast, filled=bool(donors) or self.fill is not None)
        batches = batches_by_length(examples.lengths, self.tokens)
        rows = {mask: row for row, mask in enumerate(dict.fromkeys(self.masks))}
        values, near_ties = np.zeros((len(rows), len(examples), 0)), 0
        training = model.training
        model.eval()
        try:
            measured = measure(model, task, plan, batches, self.stacked, self.fill, donors)
            for done, one in enumerate(measured, start=1):
                if not values.size:
                    values = np.zeros((*values.shape[:2], one.statistics.shape[1]))
                if one.mask in rows:
                    values[rows[one.mask], list(one.indices)] += one.statistics.numpy()
                near_ties += one.near_ties
                if progress is not None:
                    progress(min(1.0, done / (len(batches) * plan.size * max(1, len(donors)))))
        finally:
            model.train(training)
        for mask, row in rows.items() if len(donors) > 1 else ():
            values[row] /= len(donors) if mask else 1
        by_example = values[[rows[mask] for mask in self.masks]].swapaxes(0, 1)
        return {"values": np.ascontiguousarray(by_example), "near_ties": np.array(near_ties)}


@dataclass(frozen=True)
class Plan:
    """Distinct masks by the way in which they are evaluated."""

    whole: bool  # whether the model without any mask is wanted
    replayed: dict[str, list[Mask]]  # by the attention site whose heads they turn off
    pruned: list[Mask]  # on a copy without these heads and neurons
    plain: list[Mask]
    taken_apart: bool = False  # whether decoding can be

    @property
    def size(self) -> int:
        """How many masks each batch is evaluated under."""
        replayed = sum(map(len, self.replayed.values()))
        return (self.whole or replayed > 0) + replayed + len(self.pruned) + len(self.plain)

    @property
    def units(self) -> tuple[str, ...]:
        """At which sites something is turned off, as of `anatomy`."""
        return units_of(self.plain)


def make_plan(model: Any, task: Task, masks: Iterable[Mask], *, fast: bool = True, filled: bool = False) -> Plan:
    """Heads of one site: replay. Of several: a pruned copy, which is faster the more is gone. Otherwise: plainly.

    Neurons of one site are masked plainly: a layer with a mask costs no more than one without. filled: heads that are
    off put out something, which a pruned copy cannot.
    """
    found = whole_anatomy(model)
    # A mask around this call acts by hooks on the projections, which the fast paths would partly skip; and they
    # read weights that accelerate has put elsewhere until a whole layer runs.
    fast = fast and not any(is_hooked(site.output) for site in found.sites)
    fast = fast and not any(weight.is_meta for weight in model.parameters())
    taken_apart = fast and task.generates and can_draft(model, task)
    replayable = fast and (taken_apart or not task.generates)
    distinct = dict.fromkeys(masks)
    neurons = any(head.is_neuron for mask in distinct for head in mask)
    cut = [site for site in found.sites if neurons or isinstance(site, AttentionSite)]
    removable = fast and not filled and _removable(cut)
    alone = {site.name for site in found.sites if isinstance(site, AttentionSite) and not site.also_layers}
    plan = Plan(frozenset() in distinct, {}, [], [], taken_apart)
    for mask in filter(None, distinct):
        sites = {head.site for head in mask}
        if replayable and len(sites) == 1 and sites <= alone:
            plan.replayed.setdefault(sites.pop(), []).append(mask)
        elif removable and len(sites) > 1:
            plan.pruned.append(mask)
        else:
            plan.plain.append(mask)
    return plan


def _removable(sites: Sequence[Site]) -> bool:
    try:
        refuse_wrapped(sites)
    except UnsupportedModel:
        return False
    return not any(site.family.structural for site in sites)


@dataclass(frozen=True, eq=False)
class Measured:
    """The statistics of some examples under one mask."""

    mask: Mask
    indices: tuple[int, ...]
    statistics: Tensor  # (B, S)
    near_ties: int = 0


@torch.no_grad()
def measure(
    model: Any,
    task: Task,
    plan: Plan,
    batches: Sequence[Sequence[int]],
    stacked: int,
    fill: Mapping[str, Tensor] | None = None,
    donors: Sequence[Task] = (),
) -> Iterator[Measured]:
    """Carry out a plan: every mask of it on every batch, each in its way; with donors, once for each of them."""
    device, found = device_of(model), anatomy(model)
    one_by_one = measure_written if plan.taken_apart else measure_plainly
    for indices in batches if plan.whole or plan.replayed or plan.plain else ():
        batch = task.batch(indices).to(device)
        recording, position = None, None
        if plan.replayed and task.generates:
            yield from measure_drafted(model, task, batch, plan.replayed, stacked, fill)
        elif plan.replayed:
            recording = record(found, len(batch), partial(task.outputs, model, batch))
            yield Measured(frozenset(), batch.indices, task.statistics(recording.result, batch))
            position = find_last_position(recording, partial(task.outputs, model, batch)) if recording.once else None
        elif plan.whole:
            yield one_by_one(model, task, batch, frozenset())
        for number in range(max(1, len(donors)) if recording is not None or plan.plain else 0):
            one: Fill | None = fill
            if donors:
                one = donated(model, donors[number], donors[number].batch(indices).to(device), plan.units)
            if recording is not None:
                yield from measure_replayed(model, task, batch, found, recording, position, plan.replayed, stacked, one)
            for mask in plan.plain:
                yield one_by_one(model, task, batch, mask, one)
    for mask in plan.pruned:
        smaller = remove(model, mask)
        for indices in batches:
            cut = one_by_one(smaller, task, task.batch(indices).to(device), frozenset())
            yield replace(cut, mask=mask)


@torch.inference_mode()
def measure_plainly(model: Any, task: Task, batch: Batch, mask: Mask, fill: Fill | None = None) -> Measured:
    """The reference path, with which all others must agree: one mask, one full pass."""
    with filled(model, mask, fill) if mask else nullcontext():
        result = task.decode(model, batch) if task.generates else task.outputs(model, batch)
    return Measured(mask, batch.indices, task.statistics(result, batch))


@torch.inference_mode()
def measure_written(model: Any, task: Any, batch: Batch, mask: Mask, fill: Fill | None = None) -> Measured:
    """One mask at a time, decoded by a faster loop than `generate`."""
    with filled(model, mask, fill) if mask else nullcontext():
        ids, near_ties = written_outputs(model, task, batch)
    return Measured(mask, batch.indices, task.statistics(ids, batch), near_ties)


def measure_replayed(
    model: Any,
    task: Task,
    batch: Batch,
    found: Anatomy,
    recording: Recording,
    position: LastPosition | None,
    masks: Mapping[str, list[Mask]],
    stacked: int,
    fill: Fill | None = None,
) -> Iterator[Measured]:
    """After one pass of the whole model: for each site the layers above it, many masks at a time."""
    if not recording.once:
        for mask in (mask for of_site in masks.values() for mask in of_site):
            yield measure_plainly(model, task, batch, mask, fill)
        return
    copies = max(1, stacked // max(1, recording.inputs[recording.layers[0]].shape[:2].numel()))
    for name, of_site in masks.items():
        here = fill_at(fill, name, recording.contexts[name])
        replay = Replay(model, found, recording, found.site(name), position=position, fill=here)
        for first in range(0, len(of_site), copies):
            some = of_site[first : first + copies]
            many = batch.repeat(len(some))
            outputs = replay.run(mask_values(found, some, device_of(model)), partial(task.outputs, model, many))
            statistics = task.statistics(outputs, many).split(len(batch))
            ties = tied_classes(outputs).split(len(batch))
            for mask, of_mask, tied in zip(some, statistics, ties, strict=True):
                yield Measured(mask, batch.indices, of_mask, int(tied.sum()))


def measure_drafted(
    model: Any,
    task: Any,
    batch: Batch,
    masks: Mapping[str, list[Mask]],
    stacked: int,
    fill: Mapping[str, Tensor] | None = None,
) -> Iterator[Measured]:
    """The whole model's outputs, verified under every mask and decoded only from where they change."""
    outputs, near_ties = drafted_outputs(model, task, anatomy(model), batch, masks, stacked, fill)
    draft = outputs.pop(frozenset())
    unchanged = task.statistics(draft, batch)
    yield Measured(frozenset(), batch.indices, unchanged, near_ties)
    for mask, ids in outputs.items():
        yield Measured(mask, batch.indices, unchanged if ids is draft else task.statistics(ids, batch))
