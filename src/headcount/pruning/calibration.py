"""What a whole model's attention sites put out on calibration text, and where it matters."""

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
MEMORY = 4 * 2**30  # bytes of recorded outputs; the text is cut short to stay within it


class Calibration:
    """Outputs of every site of the whole model on calibration text, recorded once, on the CPU.

    order: the sites' names in the order in which they run.
    batches: the calibration text.
    A token's weight at a site is 1 if the model's output depends on what the site puts out there, else 0: padding has
    no weight, nor have all tokens but the first in the last layer of a classifier that reads only that one.
    """

    def __init__(self, whole: nn.Module, task: Task, *, tokens: int = CALIBRATION_TOKENS, seed: int = 0) -> None:
        self.task, self.device = task, device_of(whole)
        sites = anatomy(whole).sites
        width = max(
            (site.output.weight.numel() // (len(site.kept) * site.head_dim) for site in sites if site.kept), default=1
        )
        self.batches = _sample(task, min(tokens, MEMORY // (4 * width * max(1, len(sites)))), seed)
        self.order: list[str] = []
        self.targets: list[dict[str, Tensor]] = []  # per batch, site: (n, d)
        self.used: list[dict[str, Tensor]] = []  # per batch, site: (calls * B * T,) whether the token matters
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
        """(heads * head_dim,) the mean over tokens of what enters the site's projection in the whole model."""
        return self._sums[name] / max(self._counts[name], 1)

    def pairs(self, walk: Walk, site: AttentionSite) -> Iterator[tuple[Tensor, Tensor]]:
        """What a site's heads put out in the pruned model (n, width) and the whole model's site (n, d), per batch."""
        contexts = walk.contexts(site) if site.kept else None
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
            gradients = torch.autograd.grad(_reading(logits, batch), flat, allow_unused=True)
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


def _reading(logits: Tensor, batch: Batch) -> Tensor:
    """A number that depends on every logit that is looked at, and on nothing else."""
    chosen = logits.float()
    if batch.labels is not None and batch.labels.shape == logits.shape[:-1] and batch.labels.ndim > 1:
        chosen = chosen[batch.labels.to(logits.device) != -100]
    direction = torch.randn(chosen.shape[-1:], generator=torch.Generator().manual_seed(0)).to(chosen.device)
    return (F.log_softmax(chosen, dim=-1) * direction).sum()


def _flat(calls: list[Tensor]) -> Tensor:
    return torch.cat([call.flatten(0, 1) for call in calls]).cpu()


def _sample(task: Task, tokens: int, seed: int) -> list[Batch]:
    """Random examples of together about so many tokens, in batches."""
    order = torch.randperm(len(task), generator=torch.Generator().manual_seed(seed)).tolist()
    chosen, total = [], 0
    for index in order:
        if total >= tokens:
            break
        chosen.append(index)
        total += task.lengths[index]
    cut = batches_by_length([task.lengths[i] for i in chosen], TOKENS)
    return [task.batch([chosen[i] for i in indices]) for indices in cut]


class _Reached(Exception):
    """What was wanted has been seen: the rest of the model need not run."""


class Walk:
    """Sites in the order in which they run; a layer must not change any more once a later one has been asked for."""

    def __init__(self, model: nn.Module, task: Task, batches: Sequence[Batch], sites: Sequence[AttentionSite]) -> None:
        self.model, self.task, self.batches = model, task, batches
        self.device = device_of(model)
        self.shared = any(site.also_layers for site in sites)  # ALBERT's one layer runs many times
        self.blocks = list(dict.fromkeys(site.block for site in sites))
        self.stack = {block: i for i, m in enumerate(model.modules()) if isinstance(m, nn.ModuleList) for block in m}
        self.finished: list[dict[int, Any]] = [{} for _ in batches]  # per batch: what the last finished layer put out
        self.done = 0  # so many layers are finished

    def contexts(self, site: AttentionSite) -> Iterator[Tensor]:
        """What enters a site's projection in each batch, all calls together: (calls * B * T, heads * head_dim)."""
        self._finish_below(site.block)
        for place, batch in enumerate(self.batches):
            seen: list[Tensor] = []

            def hook(module: nn.Module, args: tuple[Tensor, ...], seen: list[Tensor] = seen) -> None:
                seen.append(args[0])
                if not self.shared:
                    raise _Reached

            handle = site.output.register_forward_pre_hook(hook)
            try:
                self._run(place, batch)
            finally:
                handle.remove()
            yield torch.cat([call.flatten(0, 1) for call in seen]).clone()

    def _finish_below(self, block: nn.Module) -> None:
        """Keep what the layer before this one puts out now; of the ones below it, the last of each stack is enough."""
        position = self.blocks.index(block)
        if self.shared or position <= self.done:
            return
        ends = [i for i in range(self.done, position - 1) if self._stack(i) != self._stack(i + 1)]
        for last in [*ends, position - 1]:
            for place, batch in enumerate(self.batches):
                kept: list[Any] = []

                def hook(module: nn.Module, args: Any, output: Any, kept: list[Any] = kept) -> None:
                    kept.append(output)
                    raise _Reached

                handle = self.blocks[last].register_forward_hook(hook)
                try:
                    self._run(place, batch)
                finally:
                    handle.remove()
                self.finished[place][self._stack(last)] = kept[0]
            self.done = last + 1

    def _run(self, place: int, batch: Batch) -> None:
        with Substitutes() as stubs, torch.inference_mode():
            for position in range(self.done):
                answer = self.finished[place][self._stack(position)]
                stubs.put(self.blocks[position], lambda *args, answer=answer, **kwargs: answer)
            try:
                self.task.outputs(self.model, batch.to(self.device))
            except _Reached:
                return

    def _stack(self, position: int) -> int:
        return self.stack.get(self.blocks[position], -1)
