"""What a whole model's attention sites put out on calibration text, and where it matters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headcount.anatomy import AttentionSite, anatomy, device_of
from headcount.evaluate.batches import TOKENS, batches_by_length
from headcount.pruning.walk import Walk
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
