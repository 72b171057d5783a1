"""`evaluate`: the one engine. Every sweep, curve and search asks it what happens when heads are off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headcount.anatomy import Anatomy, anatomy, device_of
from headcount.evaluate.batches import batches_by_length, tokens_for
from headcount.evaluate.drafting import Drafting
from headcount.evaluate.outcomes import Mask, Outcomes
from headcount.evaluate.plan import Plan, make_plan, read_masks
from headcount.evaluate.reading import find_reading
from headcount.evaluate.recording import record
from headcount.evaluate.reference import evaluate_plainly
from headcount.evaluate.replay import Replay, mask_values
from headcount.heads import Head
from headcount.signature import model_signature, versions
from headcount.surgery import remove
from headcount.tasks import Batch, Task

TIE = 1e-4

Progress = Callable[[float], None]


def evaluate(
    model: nn.Module,
    task: Task,
    masks: Sequence[Iterable[Head | str] | str] | None = None,
    *,
    fill: Mapping[str, Tensor] | None = None,
    fast: bool = True,
    tokens: int | None = None,
    stacked: int | None = None,
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

    masks: sets of heads to turn off, each on its own; default the whole model.
    fill: what silent heads put out instead of nothing, {site: (heads, head_dim)}, for instance `mean_contexts(…)`.
    fast: False takes the plain path for everything: one mask, one full forward pass at a time.
    tokens: per batch, padding included; default what suits the model and its device. stacked: the same for batches that
    hold several masks. Both bound the memory.
    progress: called with the share done, from 0 to 1.
    """
    found = anatomy(model)
    asked = read_masks(found, masks)
    task.check(model)
    tokens = tokens or tokens_for(model)
    # A mask around this call acts by hooks on the projections, which the fast paths would partly leave out; and they
    # read weights that accelerate has put elsewhere until a whole layer runs.
    fast = fast and not any(site.output._forward_pre_hooks for site in found.sites)
    fast = fast and not any(weight.is_meta for weight in model.parameters())
    plan = make_plan(found, task, asked, fast, removable=fill is None)
    training = model.training
    model.eval()
    try:
        sweep = _Sweep(model, task, found, plan, fill, tokens, stacked or tokens, progress)
        values = sweep.run(asked)
    finally:
        model.train(training)
    return Outcomes(
        masks=asked,
        values=values,
        metric=task.metric,
        signature={"model": model_signature(model), "task": task.signature(), "versions": versions()},
        near_ties=sweep.near_ties,
    )


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
