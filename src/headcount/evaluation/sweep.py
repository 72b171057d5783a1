"""`evaluate`: the one engine. Every sweep, curve and search asks it what happens when heads are off."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.engine import (
    Arrays,
    Engine,
    batches_by_length,
    device_type,
    is_finite,
    over_shards,
    tokens_for,
    using,
)
from headcount.errors import HeadcountError, UnsupportedModel, unknown
from headcount.evaluation.drafting import Drafting
from headcount.evaluation.last_position import find_reading
from headcount.evaluation.means import context_sums, means_of
from headcount.evaluation.outcomes import Mask, Outcomes
from headcount.evaluation.recording import record
from headcount.evaluation.replay import Replay, mask_values
from headcount.heads import Head
from headcount.intervene import masked
from headcount.runs import RunDirectory, model_signature, open_run, versions
from headcount.structure import Anatomy, anatomy, device_of, is_hooked
from headcount.surgery import refuse_wrapped, remove
from headcount.tasks import Batch, Task

FILLS = ("zero", "mean")


TIE = 1e-4

Progress = Callable[[float], None]


def evaluate(
    model: Any,
    task: Task,
    masks: Sequence[Iterable[Head | str] | str] | None = None,
    *,
    fill: str | Mapping[str, Tensor] = "zero",
    fast: bool = True,
    tokens: int | None = None,
    stacked: int | None = None,
    run: str | Path | RunDirectory | None = None,
    name: str = "outcomes",
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Outcomes:
    """Measure a model with heads turned off, for every mask and every example.

    >>> from headcount.tasks.toy import word_tokenizer
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> from headcount.tasks import Classification
    >>> config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=20)
    >>> rows = [{"text": "a fine film", "label": 1}, {"text": "a dull film", "label": 0}]
    >>> task = Classification(rows, word_tokenizer("a fine dull film"))
    >>> outcomes = evaluate(BertForSequenceClassification(config), task, masks=[[], ["encoder.0.1"]])
    >>> outcomes.values.shape  # masks, examples, statistics: counted, right, loss
    (2, 2, 3)

    masks: sets of heads to turn off, each on its own; by default the whole model.
    fill: what a silent head puts out: "zero"; "mean", its mean output over the data; or {site: (heads, head_dim)}.
    fast: False takes the plain path for everything: one mask, one full forward pass at a time.
    tokens: per batch, padding included; by default what suits the model and its device. stacked: the same for batches
        that hold several masks. Both bound the memory.
    run: a run directory that keeps finished shards; the same call resumes there. name: of the shards, where one run
        makes several evaluations.
    engine: does the work, by default that of the surrounding `using(…)`, else this process.
    progress: called with the share done, from 0 to 1.
    """
    if isinstance(fill, str) and fill not in FILLS:
        raise HeadcountError(unknown("fill", fill, FILLS))
    asked = read_masks(anatomy(model), masks)
    task.check(model)
    with nullcontext() if engine is None else using(engine):
        tokens = tokens or tokens_for(model, device_type(model))
        signature = evaluation_signature(model, task, asked, fill, fast, tokens)
        with open_run(run, signature) as directory:
            means = None if isinstance(fill, str) else fill
            if fill == "mean":
                means = means_of(over_shards(Contexts(tokens), model, task, directory=directory, name=f"{name}-means"))
            arrays = over_shards(
                Evaluation(asked, tokens, stacked or tokens, fast, means), model, task,
                masks=len(asked), directory=directory, name=name, progress=progress,
            )  # fmt: skip
    return Outcomes(asked, arrays["values"].swapaxes(0, 1), task.metric, signature, int(arrays["near_ties"]))


class _Sweep:
    """One evaluation under way: fills the statistics of every mask, batch by batch."""

    def __init__(
        self,
        model: Any,
        task: Task,
        found: Anatomy,
        plan: Plan,
        fill: Mapping[str, Tensor] | None,
        tokens: int,
        stacked: int,
        progress: Progress | None,
    ) -> None:
        self.model, self.task, self.found, self.plan = model, task, found, plan
        self.fill, self.stacked, self.progress = fill, stacked, progress
        self.batches = batches_by_length(task.lengths, tokens)
        self.device = device_of(model)
        self.values: np.ndarray | None = None  # (distinct masks, N, S)
        self.rows: dict[Mask, int] = {}
        self.near_ties = 0
        self.done, self.work = 0.0, 0.0

    def run(self, asked: Sequence[Mask]) -> np.ndarray:
        """The statistics of every mask asked for: (M, N, S)"""
        self.rows = {mask: row for row, mask in enumerate(dict.fromkeys(asked))}
        whole = frozenset() in self.rows or bool(self.plan.replayed)
        replays = sum(map(len, self.plan.replayed.values()))
        self.work = len(self.batches) * (whole + replays + len(self.plan.plain) + len(self.plan.pruned))
        if whole or self.plan.plain:
            for indices in self.batches:
                self._batch(self.task.batch(indices).to(self.device), whole)
        for mask in self.plan.pruned:
            smaller = remove(self.model, mask)
            for indices in self.batches:
                batch = self.task.batch(indices).to(self.device)
                self._store(mask, batch, evaluate_plainly(smaller, self.task, batch, frozenset()))
        assert self.values is not None
        return self.values if len(self.rows) == len(asked) else self.values[[self.rows[mask] for mask in asked]]

    @torch.no_grad()
    def _batch(self, batch: Batch, whole: bool) -> None:
        if self.task.generates and self.plan.replayed:
            drafting = Drafting(self.model, self.task, self.found, batch, self.stacked, self.fill)
            self._store(frozenset(), batch, drafting.statistics)
            for mask, statistics in drafting.sweep(self.plan.replayed):
                self._store(mask, batch, statistics)
            self.near_ties += drafting.near_ties
        elif self.plan.replayed:
            self._replay(batch)
        elif whole:
            self._store(frozenset(), batch, evaluate_plainly(self.model, self.task, batch, frozenset()))
        for mask in self.plan.plain:
            self._store(mask, batch, evaluate_plainly(self.model, self.task, batch, mask, self.fill))

    def _replay(self, batch: Batch) -> None:
        seen = record(self.found, len(batch), lambda: self.task.outputs(self.model, batch))
        self._store(frozenset(), batch, self.task.statistics(seen.result, batch))
        if not seen.once:
            for masks in self.plan.replayed.values():
                for mask in masks:
                    self._store(mask, batch, evaluate_plainly(self.model, self.task, batch, mask, self.fill))
            return
        reading = find_reading(seen, lambda: self.task.outputs(self.model, batch))
        replay = Replay(self.model, self.found, seen, reading, self.fill)
        copies = max(1, self.stacked // max(1, seen.inputs[seen.layers[0]].shape[:2].numel()))
        for name, masks in self.plan.replayed.items():
            for start in range(0, len(masks), copies):
                some = masks[start : start + copies]
                many = batch.repeat(len(some))
                xi = mask_values(self.found, some, self.device)
                outputs = replay.run(self.found.site(name), xi, partial(self.task.outputs, self.model, many))
                self._count_ties(outputs)
                for mask, part in zip(some, self.task.statistics(outputs, many).split(len(batch)), strict=True):
                    self._store(mask, batch, part)

    def _count_ties(self, outputs: Tensor) -> None:
        if outputs.ndim == 2 and outputs.shape[-1] > 1:
            best = outputs.float().topk(2, dim=-1).values  # (B, 2)
            self.near_ties += int((best[:, 0] - best[:, 1] < TIE).sum())

    def _store(self, mask: Mask, batch: Batch, statistics: Tensor) -> None:
        if self.values is None:
            self.values = np.zeros((len(self.rows), len(self.task), statistics.shape[1]))
        if mask in self.rows:
            self.values[self.rows[mask], list(batch.indices)] = statistics.numpy()
        self.done += 1
        if self.progress is not None:
            self.progress(min(1.0, self.done / self.work))


@dataclass(frozen=True)
class Plan:
    """Distinct masks by the way they are evaluated; `replayed` by the site where they differ from the whole model."""

    replayed: dict[str, list[Mask]]
    pruned: list[Mask]
    plain: list[Mask]


def make_plan(found: Anatomy, task: Task, masks: Iterable[Mask], fast: bool, removable: bool = True) -> Plan:
    """One site: replay. Several sites: a pruned copy, which gets faster the more is gone. Neither possible: plainly."""
    plan = Plan({}, [], [])
    shared = {site.name for site in found.sites if site.also_layers}
    removable = removable and _removable(found)
    drafts = not task.generates or getattr(task, "beams", 1) == 1
    for mask in dict.fromkeys(masks):
        sites = {head.site for head in mask}
        if not mask:
            continue
        if fast and drafts and len(sites) == 1 and not sites & shared:
            plan.replayed.setdefault(sites.pop(), []).append(mask)
        elif fast and removable and len(sites) > 1:
            plan.pruned.append(mask)
        else:
            plan.plain.append(mask)
    return plan


def read_masks(found: Anatomy, masks: Sequence[Iterable[Head | str] | str] | None) -> tuple[Mask, ...]:
    """The masks asked for, each a set of heads that the model has; none given means the whole model."""
    if masks is not None and (isinstance(masks, str) or not len(masks)):
        raise HeadcountError("masks is a list of sets of heads, at least one; [[]] is the whole model")
    return tuple(frozenset(found.check(mask)) for mask in ([()] if masks is None else masks))


def _removable(found: Anatomy) -> bool:
    try:
        refuse_wrapped(found)
    except UnsupportedModel:
        return False
    return not any(site.family.structural for site in found.sites)


@torch.inference_mode()
def evaluate_plainly(
    model: Any, task: Task, batch: Batch, mask: Mask, fill: Mapping[str, Tensor] | None = None
) -> Tensor:
    """The statistics of a batch under one mask: (B, S)"""
    with masked(model, off=mask, fill=fill):
        result = task.decode(model, batch) if task.generates else task.outputs(model, batch)
    return task.statistics(result, batch)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """`evaluate` as work: for each example the statistics of every mask, (N, M, S)."""

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
        found = anatomy(model)
        # A mask around this call acts by hooks on the projections, which the fast paths would partly leave out; and
        # they read weights that accelerate has put elsewhere until a whole layer runs.
        fast = self.fast and not any(is_hooked(site.output) for site in found.sites)
        fast = fast and not any(weight.is_meta for weight in model.parameters())
        plan = make_plan(found, examples, self.masks, fast, removable=self.fill is None)
        training = model.training
        model.eval()
        try:
            sweep = _Sweep(model, examples, found, plan, self.fill, self.tokens, self.stacked, progress)
            values = sweep.run(self.masks)
        finally:
            model.train(training)
        return {"values": np.ascontiguousarray(values.swapaxes(0, 1)), "near_ties": np.array(sweep.near_ties)}


@dataclass(frozen=True)
class Contexts:
    """What the mean output of every head is computed from: sums over tokens."""

    tokens: int

    def summed(self, name: str) -> bool:
        return True

    def fits(self, arrays: Arrays, count: int) -> bool:
        return all(is_finite(array) for array in arrays.values())

    def __call__(self, model: Any, examples: Any, progress: Progress | None = None) -> Arrays:
        return context_sums(model, examples, self.tokens)


def evaluation_signature(
    model: Any, task: Task, masks: Sequence[Mask], fill: str | Mapping[str, Tensor], fast: bool, tokens: int
) -> dict[str, Any]:
    """All that the outcomes of an evaluation depend on."""
    written = ";".join(",".join(sorted(map(str, mask))) for mask in masks)
    return {
        "model": model_signature(model),
        "task": task.signature(),
        "masks": {"count": len(masks), "fingerprint": _digest(written.encode())},
        "fill": fill if isinstance(fill, str) else {site: _digest(_bytes(fill[site])) for site in sorted(fill)},
        "batches": {"tokens": tokens, "fast": fast},
        "versions": versions(),
    }


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().float().cpu().contiguous().numpy().tobytes()
