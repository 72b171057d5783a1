"""A baseline: Kwon et al. 2022, "A Fast Post-Training Pruning Framework for Transformers", written from the paper.

Four stages, all on a sample of the training data and without retraining:
1. the Fisher information of a mask variable on every head and neuron (section 4.1);
2. mask search: which heads and neurons to keep within a budget of FLOPs, by the diagonal of the Fisher (algorithm 1);
3. mask rearrangement: the same number per layer, chosen again with the interactions inside it (section 4.2);
4. mask tuning: the values of the masks that are kept, so that each layer puts out what the whole model's does (4.3).
The tuned values are folded into the output projections, and the others really removed.

The paper has one kind of layer. Here encoder and decoder layers see texts of different lengths, so that the heads of an
encoder-decoder differ in cost; with equal costs, the search is the paper's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.bench import count_flops
from headcount.engine import TOKENS, batches_by_length
from headcount.errors import HeadcountError
from headcount.heads import Head
from headcount.intervene import masked
from headcount.structure import Substitutes, anatomy, is_transposed
from headcount.surgery import remove
from headcount.tasks import Batch, Task

UNITS = ("heads", "neurons")
NORM_AFTER = ("bert", "marian")  # families that normalise after the residual sum, as stage 4 assumes
DAMPING, RANGE = 1.0, 10.0  # of stage 4


class Kwon:
    """The method on one model and one sample of data; `prune` it to any number of FLOPs.

    task: the paper takes 2,048 training examples. batch: examples whose FLOPs are counted.
    beyond: what to do with a layer for which stage 4 finds values outside of [-10, 10]: "stop" leaves its masks, and
        those of the layers after it, at 1; "clip" cuts the values off and continues.
    """

    def __init__(self, model: Any, task: Task, batch: Batch, beyond: str = "stop") -> None:
        if model.config.model_type not in NORM_AFTER:
            raise HeadcountError(f"{model.config.model_type} is not one of {', '.join(NORM_AFTER)}")
        self.model, self.task, self.beyond = model.eval(), task, beyond
        self.gradients = mask_gradients(model, task)
        self.total, self.costs = flops_by_unit(model, task, batch)
        self.targets = Targets(model, task)

    def prune(self, ratio: float) -> Any:
        """A copy with `ratio` times fewer FLOPs; prints where mask tuning stopped, if it did."""
        smaller, _, stopped = self.cut(ratio)
        if stopped:
            print(f"# Kwon at {ratio:g}: mask tuning stopped at {stopped}, beyond {RANGE:g}", flush=True)
        return smaller

    def cut(self, ratio: float, *, rearranged: bool = True, tuned: bool = True) -> tuple[Any, dict[Head, float], str]:
        """The smaller copy, the value of every mask that was kept, and the site at which tuning stopped, or ""."""
        sites = {site.name: site for site in anatomy(self.model, UNITS).sites}
        units = sum(self.costs[name] * len(site.kept) for name, site in sites.items())
        importance = {name: (rows**2).mean(0) for name, rows in self.gradients.items()}
        kept = search(importance, self.costs, self.total / ratio - (self.total - units))
        if rearranged:
            kept = {name: rearrange(keep, fisher_block(self.gradients[name])) for name, keep in kept.items()}
        off = [
            head
            for name, keep in kept.items()
            for head, stays in zip(sites[name].heads, keep, strict=True)
            if not stays
        ]
        smaller = remove(self.model, off)
        values, stopped = tune(smaller, self.targets, self.beyond) if tuned else ({}, "")
        ones = {head: 1.0 for site in anatomy(smaller, UNITS).sites for head in site.heads}
        return smaller, ones | values, stopped


def mask_gradients(model: Any, task: Task) -> dict[str, np.ndarray]:
    """dL(x)/dm at m = 1 of every example x and mask variable m, by site: (examples, units of the site)."""
    sites = [site for site in anatomy(model, UNITS).sites if site.kept]
    count = sum(len(site.kept) for site in sites)
    rows = np.empty((len(task), count), np.float32)
    frozen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with ExitStack() as stack:
        for parameter in frozen:
            parameter.requires_grad_(False)
            stack.callback(parameter.requires_grad_, True)
        for indices in batches_by_length(task.lengths, TOKENS):
            batch = task.batch(indices)
            xi = torch.ones(len(batch), count, requires_grad=True)
            with masked(model, xi=xi, units=UNITS):
                loss = task.losses(task.outputs(model, batch), batch).sum()
            rows[indices] = torch.autograd.grad(loss, xi)[0].numpy()
    ends = np.cumsum([len(site.kept) for site in sites])[:-1]
    return dict(zip((site.name for site in sites), np.split(rows, ends, axis=1), strict=True))


def flops_by_unit(model: Any, task: Task, batch: Batch) -> tuple[int, dict[str, int]]:
    """FLOPs of the model on a batch, and those that one unit of each site adds to them."""
    total = count_flops(lambda: task.outputs(model, batch))
    costs = {}
    for site in anatomy(model, UNITS).sites:
        if site.kept:
            smaller = remove(model, [site.heads[0]])
            costs[site.name] = total - count_flops(lambda smaller=smaller: task.outputs(smaller, batch))  # type: ignore[misc]
    return total, costs


def search(importance: Mapping[str, np.ndarray], costs: Mapping[str, float], budget: float) -> dict[str, np.ndarray]:
    """Algorithm 1: for every number of heads, the neurons that still fit; the pair that loses the least Fisher.

    >>> importance = {"encoder.0": np.array([5.0, 1.0]), "encoder_ffn.0": np.array([2.0, 3.0, 0.5])}
    >>> search(importance, {"encoder.0": 2, "encoder_ffn.0": 1}, budget=4)
    {'encoder.0': array([ True, False]), 'encoder_ffn.0': array([ True,  True, False])}

    importance: the diagonal of the Fisher, by site. costs: of one unit of each site. budget: for all units together.
    """
    heads, neurons = (_Sorted(importance, costs, neurons=neurons) for neurons in (False, True))
    best: tuple[float, int, int] | None = None
    for number, spent in enumerate(heads.spent):
        if spent > budget:
            break
        fit = int(np.searchsorted(neurons.spent, budget - spent, side="right")) - 1
        lost = heads.lost[number] + neurons.lost[fit]
        if best is None or lost < best[0]:
            best = (lost, number, fit)
    if best is None:
        raise HeadcountError("even without any head and neuron, the model has more FLOPs than asked for")
    return {
        name: keep for kind, number in zip((heads, neurons), best[1:], strict=True) for name, keep in kind.top(number)
    }


class _Sorted:
    """All heads, or all neurons, the most important first: what the first k of them cost, and what the others lose."""

    def __init__(self, importance: Mapping[str, np.ndarray], costs: Mapping[str, float], *, neurons: bool) -> None:
        names = [name for name in importance if Head.parse(f"{name}.0").is_neuron == neurons]
        self.sizes = {name: len(importance[name]) for name in names}
        values = np.concatenate([importance[name].astype(float) for name in names] or [np.empty(0)])
        cost = np.concatenate([np.full(len(importance[name]), costs[name]) for name in names] or [np.empty(0)])
        self.order = np.argsort(-values, kind="stable")
        self.spent = np.concatenate([[0], np.cumsum(cost[self.order])])  # (units + 1,)
        self.lost = values.sum() - np.concatenate([[0.0], np.cumsum(values[self.order])])  # (units + 1,)

    def top(self, number: int) -> Iterator[tuple[str, np.ndarray]]:
        """By site, which units are among the first `number`."""
        keep = np.zeros(len(self.order), bool)
        keep[self.order[:number]] = True
        return zip(self.sizes, np.split(keep, np.cumsum(list(self.sizes.values()))[:-1]), strict=True)


def fisher_block(gradients: np.ndarray) -> np.ndarray:
    """The Fisher information of one layer's masks, with their interactions: (units, units)."""
    return gradients.T.astype(float) @ gradients.astype(float) / len(gradients)


def rearrange(kept: np.ndarray, fisher: np.ndarray) -> np.ndarray:
    """Exchange kept and pruned units of one layer, one pair at a time, as long as (1 - m)^T F (1 - m) falls.

    >>> gradients = np.array([[1.0, 1.0], [1.0, 1.0], [-1.1, -1.1]]).T  # the first two add up, the third cancels one
    >>> rearrange(np.array([False, False, True]), fisher_block(gradients))
    array([ True, False, False])

    Each kept unit is tried once, the least important first, in place of the pruned one with which the sum falls most.
    """
    pruned = ~kept
    if pruned.all() or kept.all():
        return kept
    diagonal = fisher.diagonal()
    pull = fisher[:, pruned].sum(1)  # (units,): F (1 - m)
    for unit in sorted(np.flatnonzero(kept), key=lambda unit: diagonal[unit]):
        inside = np.flatnonzero(pruned)
        # Prune `unit`, restore i: the sum grows by the first line and falls by the second.
        change = 2 * pull[unit] + diagonal[unit]
        change = change - 2 * (pull[inside] + fisher[inside, unit]) + diagonal[inside]
        restored = inside[int(change.argmin())]
        if change.min() < 0:
            pruned[unit], pruned[restored] = True, False
            pull = pull + fisher[:, unit] - fisher[:, restored]
    return ~pruned


class Targets:
    """What the whole model has after every sublayer, residual included: x + layer(x), before it is normalised."""

    def __init__(self, model: Any, task: Task) -> None:
        self.task = task
        self.batches = [task.batch(indices) for indices in batches_by_length(task.lengths, TOKENS)]
        self.order: list[str] = []  # of the sites, as they run
        self.rows: list[dict[str, Tensor]] = []
        sites = [site for site in anatomy(model, UNITS).sites if site.kept]
        for batch in self.batches:
            sums = self._sums(model, batch, sites)
            self.order = self.order or list(sums)
            self.rows.append({name: states[_used(name, batch)] for name, states in sums.items()})

    def _sums(self, model: Any, batch: Batch, sites: Sequence[Any]) -> dict[str, Tensor]:
        """x + layer(x) of every sublayer, in the order in which they run: (B, T, d) each"""
        sums: dict[str, Tensor] = {}

        def enter(module: Any, args: tuple[Tensor, ...], name: str) -> None:
            sums[name] = args[0]

        def leave(module: Any, args: Any, output: Tensor, name: str) -> None:
            sums[name] = sums[name] + output

        with ExitStack() as stack, torch.inference_mode():
            for site in sites:
                before, after = partial(enter, name=site.name), partial(leave, name=site.name)
                stack.callback(site.inputs[0][1].register_forward_pre_hook(before).remove)
                stack.callback(site.output.register_forward_hook(after).remove)
            self.task.outputs(model, batch)
        return sums


def _used(site: str, batch: Batch) -> Tensor:
    """The positions that hold a token: (B, T)"""
    if site.startswith("encoder"):
        return batch.inputs["attention_mask"].bool()
    assert batch.labels is not None
    return batch.labels != -100


@torch.no_grad()
def tune(smaller: Any, targets: Targets, beyond: str = "stop") -> tuple[dict[Head, float], str]:
    """Stage 4, in place: rescale the units left, site by site as they run, each by its own least squares.

    Returns the value of every unit that was rescaled, and the site at which tuning stopped, or "". beyond: see `Kwon`.
    """
    sites = {site.name: site for site in anatomy(smaller, UNITS).sites}
    stream = Stream(smaller.eval(), targets.task, targets.batches, [sites[name] for name in targets.order])
    values: dict[Head, float] = {}
    for name in targets.order:
        site = sites[name]
        if not site.kept:
            continue
        columns = site.output.weight.T if is_transposed(site.output) else site.output.weight  # (d, units * width)
        gram = torch.zeros(columns.shape[1], columns.shape[1], dtype=torch.float64)
        cross = torch.zeros(columns.shape[1], columns.shape[0], dtype=torch.float64)
        for place, (state, context) in enumerate(stream.at(site)):
            used = _used(name, targets.batches[place])
            missing = targets.rows[place][name] - state[used] - site.output(context[used])  # (rows, d)
            gram += context[used].T @ context[used]
            cross += context[used].T @ missing
        scales = least_squares(gram, cross, columns.double(), site.width)
        if scales.abs().max() > RANGE and beyond == "stop":
            return values, name
        scales = scales.clamp(-RANGE, RANGE)
        columns *= scales.repeat_interleave(site.width).to(columns)
        values |= dict(zip(site.heads, scales.tolist(), strict=True))
    return values, ""


def least_squares(gram: Tensor, cross: Tensor, columns: Tensor, width: int, damping: float = DAMPING) -> Tensor:
    """The m = 1 + r that minimises |A r - b|^2 + damping^2 |r|^2, where column i of A is what unit i adds: (units,)

    gram: C^T C of the contexts C (rows, units * width). cross: C^T B of what is missing, B (rows, d).
    columns: of the output projection, (d, units * width).

    A has a row for every number of the layer's output, (rows * d, units), and is never written out: with the columns
    W_i of a unit, A_i = C_i W_i^T, so that A_i^T A_j = <C_i^T C_j, W_i^T W_j> and A_i^T b = <C_i^T B, W_i^T>.
    """
    units = len(gram) // width
    products = gram * (columns.T @ columns)  # (units * width, units * width)
    normal = products.view(units, width, units, width).sum((1, 3))
    right = (cross * columns.T).sum(1).view(units, width).sum(1)
    return 1 + torch.linalg.solve(normal + damping**2 * torch.eye(units, dtype=normal.dtype), right)


class _Stop(Exception):
    """Raised inside a forward pass when all that is wanted has been seen."""


class Stream:
    """What enters each sublayer of a model, and its output projection, block by block.

    The outputs of finished blocks are kept, so a block must not change once a later one has been asked for.
    """

    def __init__(self, model: Any, task: Task, batches: Sequence[Batch], sites: Sequence[Any]) -> None:
        self.model, self.task, self.batches = model, task, batches
        self.blocks = list(dict.fromkeys(site.block for site in sites))
        self.outputs: list[dict[Any, Any]] = [{} for _ in batches]

    def at(self, site: Any) -> Iterator[tuple[Tensor, Tensor]]:
        """For every batch, x (B, T, d) and the context (B, T, units * width)."""
        self._finish(self.blocks[: self.blocks.index(site.block)])
        for place in range(len(self.batches)):
            seen: list[Tensor] = []

            def keep(module: Any, args: tuple[Tensor, ...], seen: list[Tensor] = seen) -> None:
                seen.append(args[0])
                if len(seen) == 2:
                    raise _Stop

            with ExitStack() as stack:
                for module in (site.inputs[0][1], site.output):
                    stack.callback(module.register_forward_pre_hook(keep).remove)
                self._run(place)
            yield seen[0], seen[1]

    def _finish(self, blocks: Sequence[Any]) -> None:
        """Run these blocks, but for those that have been, and keep what they put out."""
        new = [block for block in blocks if block not in self.outputs[0]]
        for place in range(len(self.batches) if new else 0):
            fresh: dict[Any, Any] = {}

            def keep(block: Any, args: Any, output: Any, fresh: dict[Any, Any] = fresh) -> None:
                fresh[block] = output
                if len(fresh) == len(new):
                    raise _Stop

            with ExitStack() as stack:
                for block in new:
                    stack.callback(block.register_forward_hook(keep).remove)
                self._run(place)
            self.outputs[place] |= fresh

    def _run(self, place: int) -> None:
        with Substitutes() as stubs, torch.inference_mode():
            for block, output in self.outputs[place].items():
                stubs.put(block, lambda *args, output=output, **kwargs: output)
            try:
                self.task.outputs(self.model, self.batches[place])
            except _Stop:
                return
