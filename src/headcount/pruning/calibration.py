"""What compensation is fitted on: the outputs of a whole model's attention sites, and the contexts of a pruned one's.

`Calibration` records the whole model once. `LayerwiseForward` then runs the pruned model site by site: what it gives
for a site reflects all changes that were made to the sites before it, and finished layers are not run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headcount.engine import TOKENS, batches_by_length
from headcount.structure import AttentionSite, Substitutes, anatomy, device_of
from headcount.tasks import Batch, Task

CALIBRATION_TOKENS = 10_000  # a few hundred sentences
MEMORY = 4 * 2**30  # bytes of recorded outputs; fewer tokens are used to stay within it


class Calibration:
    """The outputs of every site of the whole model on a calibration set, recorded once, on the CPU.

    order: the sites' names in the order in which they run. batches: the calibration set.
    used: which tokens count at a site, those on whose output there the model's output depends. Padding does not count,
        nor does any token but the first in the last layer of a classifier that reads only that one.
    """

    def __init__(self, whole: nn.Module, task: Task, *, tokens: int = CALIBRATION_TOKENS, seed: int = 0) -> None:
        self.task, self.device = task, device_of(whole)
        sites = anatomy(whole).sites
        width = max(
            (site.output.weight.numel() // (len(site.kept) * site.head_dim) for site in sites if site.kept), default=1
        )
        self.batches = _sample(task, min(tokens, MEMORY // (4 * width * max(1, len(sites)))), seed)
        self.order: list[str] = []
        self.targets: list[dict[str, Tensor]] = []  # per batch, site: (n, d) outputs of the n tokens that count
        self.used: list[dict[str, Tensor]] = []  # per batch, site: (calls * B * T,)
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        training = whole.training
        whole.eval()
        try:
            for batch in self.batches:
                self._record(whole, batch)
        finally:
            whole.train(training)

    def mean_context(self, name: str) -> Tensor:
        """(heads * head_dim,) the mean over tokens of the output projection's input in the whole model."""
        return self._sums[name] / max(self._counts[name], 1)

    def pairs(self, forward: LayerwiseForward, site: AttentionSite) -> Iterator[tuple[Tensor, Tensor]]:
        """Per batch: the heads' outputs at a site of the pruned model (n, width), the whole site's output (n, d)."""
        contexts = forward.contexts(site) if site.kept else None
        for targets, used in zip(self.targets, self.used, strict=True):
            target = targets[site.name].double()
            if contexts is None:
                yield torch.zeros(len(target), 0, dtype=torch.float64), target
            else:
                yield next(contexts)[used[site.name].to(self.device)].cpu().double(), target

    def _record(self, whole: nn.Module, batch: Batch) -> None:
        sites = [site for site in anatomy(whole).sites if site.kept]
        contexts: dict[str, list[Tensor]] = {}
        leaves: dict[str, list[Tensor]] = {}
        outputs: dict[str, list[Tensor]] = {}
        frozen = [parameter for parameter in whole.parameters() if parameter.requires_grad]
        whole.requires_grad_(False)
        try:
            with torch.enable_grad(), ExitStack() as stack:
                for site in sites:
                    hook = _recorder(site.name, contexts, leaves, outputs)
                    stack.callback(site.output.register_forward_hook(hook).remove)
                logits = self.task.outputs(whole, batch.to(self.device))
            order = [(name, call) for name in leaves for call in range(len(leaves[name]))]
            flat = [leaves[name][call] for name, call in order]
            gradients = torch.autograd.grad(_probe(logits, batch), flat, allow_unused=True)
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)
        self.order = self.order or list(leaves)
        used: dict[str, list[Tensor]] = {}
        for (name, call), gradient in zip(order, gradients, strict=True):
            size = leaves[name][call].shape[:2].numel()
            nothing = torch.zeros(size, dtype=torch.bool)
            used.setdefault(name, []).append(nothing if gradient is None else (gradient != 0).any(-1).flatten().cpu())
        self.used.append({name: torch.cat(parts) for name, parts in used.items()})
        self.targets.append({name: _flat(outputs[name])[mask] for name, mask in self.used[-1].items()})
        for name, mask in self.used[-1].items():
            context = _flat(contexts[name])[mask].double()
            self._sums[name] = self._sums.get(name, 0) + context.sum(0)
            self._counts[name] = self._counts.get(name, 0) + len(context)


def _recorder(name: str, contexts: dict, leaves: dict, outputs: dict) -> Any:
    def hook(projection: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        leaf = torch.zeros_like(output, requires_grad=True)
        leaves.setdefault(name, []).append(leaf)
        outputs.setdefault(name, []).append(output.detach())
        contexts.setdefault(name, []).append(args[0].detach())
        return output + leaf

    return hook


def _probe(logits: Tensor, batch: Batch) -> Tensor:
    """A number that depends on every logit that is used, and on nothing else."""
    chosen = logits.float()
    if batch.labels is not None and batch.labels.shape == logits.shape[:-1] and batch.labels.ndim > 1:
        chosen = chosen[batch.labels.to(logits.device) != -100]
    direction = torch.randn(chosen.shape[-1:], generator=torch.Generator().manual_seed(0)).to(chosen.device)
    return (F.log_softmax(chosen, dim=-1) * direction).sum()


def _flat(calls: list[Tensor]) -> Tensor:
    return torch.cat([call.flatten(0, 1) for call in calls]).cpu()


def _sample(task: Task, tokens: int, seed: int) -> list[Batch]:
    """Random examples with about this many tokens in total, in batches."""
    order = torch.randperm(len(task), generator=torch.Generator().manual_seed(seed)).tolist()
    chosen, total = [], 0
    for index in order:
        if total >= tokens:
            break
        chosen.append(index)
        total += task.lengths[index]
    cut = batches_by_length([task.lengths[i] for i in chosen], TOKENS)
    return [task.batch([chosen[i] for i in indices]) for indices in cut]


class _StopForward(Exception):
    """Raised inside a forward pass once the wanted tensor has been seen."""


class LayerwiseForward:
    """Forward passes up to one site at a time, in the order in which sites run.

    The output of a finished layer is stored and returned in its place, so a layer must not change once the contexts of
    a later layer have been asked for.
    """

    def __init__(self, model: nn.Module, task: Task, batches: Sequence[Batch], sites: Sequence[AttentionSite]) -> None:
        self.model, self.task, self.batches = model, task, batches
        self.device = device_of(model)
        self.shared = any(site.also_layers for site in sites)  # ALBERT's one layer runs many times
        self.blocks = list(dict.fromkeys(site.block for site in sites))
        stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
        self.stack = {block: number for number, stack in enumerate(stacks) for block in stack}
        self.stored: list[dict[int, Any]] = [{} for _ in batches]  # per stack: the output of its last finished layer
        self.finished = 0  # how many of the blocks

    def contexts(self, site: AttentionSite) -> Iterator[Tensor]:
        """The input of a site's output projection in each batch, all its calls: (calls * B * T, heads * head_dim)."""
        self._finish_before(site.block)
        for place, batch in enumerate(self.batches):
            seen: list[Tensor] = []

            def hook(module: nn.Module, args: tuple[Tensor, ...], seen: list[Tensor] = seen) -> None:
                seen.append(args[0])
                if not self.shared:
                    raise _StopForward

            handle = site.output.register_forward_pre_hook(hook)
            try:
                self._run(place, batch)
            finally:
                handle.remove()
            yield torch.cat([call.flatten(0, 1) for call in seen]).clone()

    def _finish_before(self, block: nn.Module) -> None:
        """Store the output of the layer before this one, and of the last layer of each stack before that."""
        position = self.blocks.index(block)
        if self.shared or position <= self.finished:
            return
        ends = [i for i in range(self.finished, position - 1) if self._stack(i) != self._stack(i + 1)]
        for last in [*ends, position - 1]:
            for place, batch in enumerate(self.batches):
                outputs: list[Any] = []

                def hook(module: nn.Module, args: Any, output: Any, outputs: list[Any] = outputs) -> None:
                    outputs.append(output)
                    raise _StopForward

                handle = self.blocks[last].register_forward_hook(hook)
                try:
                    self._run(place, batch)
                finally:
                    handle.remove()
                self.stored[place][self._stack(last)] = outputs[0]
            self.finished = last + 1

    def _run(self, place: int, batch: Batch) -> None:
        with Substitutes() as stubs, torch.inference_mode():
            for position in range(self.finished):
                answer = self.stored[place][self._stack(position)]
                stubs.put(self.blocks[position], lambda *args, answer=answer, **kwargs: answer)
            try:
                self.task.outputs(self.model, batch.to(self.device))
            except _StopForward:
                return

    def _stack(self, position: int) -> int:
        return self.stack.get(self.blocks[position], -1)
