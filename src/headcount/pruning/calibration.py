"""What compensation is fitted on: what the sites of a whole model pass on, and what those of a pruned one do.

`Calibration` records the whole model once. `LayerwiseForward` then runs the pruned model site by site: what it gives
for a site reflects all changes that were made to the sites before it, and finished layers are not run again.

What a site passes on is the input of the normalisation that follows it: its output added to the residual stream, so
that a later site can correct what earlier ones left wrong in the stream. Where no normalisation reads that sum, it is
the output of the site alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headcount.engine import TOKENS, batches_by_length, fast_products
from headcount.evaluation import answer_at
from headcount.structure import Site, Substitutes, device_of, whole_anatomy
from headcount.tasks import Batch, Task

CALIBRATION_TOKENS = 10_000  # a few hundred sentences
MEMORY = 4 * 2**30  # bytes of recorded outputs; fewer tokens are used to stay within it


class Calibration:
    """What every site of the whole model passes on, for the tokens of a calibration set; recorded once, on the CPU.

    order: the sites' names in the order in which they run. batches: the calibration set.
    norms: of each site, the path of the normalisation that follows it, if it has one.
    used: which tokens count at a site, those on whose output there the model's output depends. Padding does not count,
        nor does any token but the first in the last layer of a classifier that reads only that one.
    """

    def __init__(self, whole: nn.Module, task: Task, *, tokens: int = CALIBRATION_TOKENS, seed: int = 0) -> None:
        self.task, self.device = task, device_of(whole)
        sites = [site for site in whole_anatomy(whole).sites if site.kept]
        width = max((site.output.weight.numel() // (len(site.kept) * site.width) for site in sites), default=1)
        self.batches = _sample(task, min(tokens, MEMORY // (4 * width * max(1, len(sites)))), seed)
        self.order: list[str] = []
        self.targets: list[dict[str, Tensor]] = []  # per batch, site: (n, d) of the n tokens that count
        self.used: list[dict[str, Tensor]] = []  # per batch, site: (calls * B * T,)
        # By model that was refitted, and site: the sums of its units' outputs that the refit made, for what comes next.
        self.outputs: WeakKeyDictionary[nn.Module, dict[str, Any]] = WeakKeyDictionary()
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        training = whole.training
        whole.eval()
        try:
            self.norms = _following_norms(whole, task, sites)
            with fast_products():
                for batch in self.batches:
                    self._record(whole, batch, sites)
        finally:
            whole.train(training)

    def mean_context(self, name: str) -> Tensor:
        """(units * width,) the mean over tokens of the output projection's input in the whole model."""
        return self._sums[name] / max(self._counts[name], 1)

    def contexts(self, model: nn.Module, batch: Batch, sites: Sequence[Site]) -> dict[str, Tensor]:
        """By site, all calls: the units' outputs for the tokens of a batch (calls * B * T, width), on the CPU."""
        seen: dict[str, list[Tensor]] = {}
        with ExitStack() as stack, torch.inference_mode():
            for site in sites:
                note = lambda module, args, name=site.name: seen.setdefault(name, []).append(args[0])  # noqa: E731
                stack.callback(site.output.register_forward_pre_hook(note).remove)
            self.task.outputs(model, batch.to(self.device))
        return {name: _rows(calls).cpu().float() for name, calls in seen.items()}

    def missing(self, forward: LayerwiseForward, site: Site) -> Iterator[tuple[Tensor, Tensor]]:
        """Per batch: the units' outputs at a site of the pruned model (n, width); what it fails to pass on (n, d)."""
        handed_on = forward.handed_on(site, self.norms.get(site.name))
        for targets, used in zip(self.targets, self.used, strict=True):
            context, now = next(handed_on)
            target, chosen = targets[site.name].float(), used[site.name].to(self.device)
            units = target.new_zeros(len(target), 0) if context is None else context[chosen].cpu().float()
            yield units, target - (site.output.bias.detach() if now is None else now[chosen]).cpu().float()

    def _record(self, whole: nn.Module, batch: Batch, sites: Sequence[Site]) -> None:
        seen = _Recorder(self.norms)
        frozen = [parameter for parameter in whole.parameters() if parameter.requires_grad]
        whole.requires_grad_(False)
        try:
            with torch.enable_grad(), ExitStack() as stack:
                seen.watch(whole, sites, stack)
                logits = self.task.outputs(whole, batch.to(self.device))
            order = [(name, call) for name in seen.leaves for call in range(len(seen.leaves[name]))]
            flat = [seen.leaves[name][call] for name, call in order]
            gradients = torch.autograd.grad(_probe(logits, batch), flat, allow_unused=True)
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)
        self.order = self.order or list(seen.leaves)
        used: dict[str, list[Tensor]] = {}
        for (name, call), gradient in zip(order, gradients, strict=True):
            size = seen.leaves[name][call].shape[:-1].numel()
            nothing = torch.zeros(size, dtype=torch.bool)
            used.setdefault(name, []).append(nothing if gradient is None else (gradient != 0).any(-1).flatten().cpu())
        self.used.append({name: torch.cat(parts) for name, parts in used.items()})
        self.targets.append({name: _rows(seen.handed_on[name]).cpu()[mask] for name, mask in self.used[-1].items()})
        for name, mask in self.used[-1].items():
            context = _rows(seen.contexts[name]).cpu()[mask].double()
            self._sums[name] = self._sums.get(name, 0) + context.sum(0)
            self._counts[name] = self._counts.get(name, 0) + len(context)


class _Recorder:
    """Hooks that note, for every site, each call's input, what it passes on, and a leaf to differentiate by."""

    def __init__(self, norms: dict[str, str]) -> None:
        self.norms = norms
        self.contexts: dict[str, list[Tensor]] = {}
        self.leaves: dict[str, list[Tensor]] = {}
        self.handed_on: dict[str, list[Tensor]] = {}
        self.awaited: dict[str, list[str]] = {}  # by a norm's path: the sites that have run since it last did

    def watch(self, model: nn.Module, sites: Sequence[Site], stack: ExitStack) -> None:
        for site in sites:
            stack.callback(site.output.register_forward_hook(self._at_site(site.name)).remove)
        for path in set(self.norms.values()):
            stack.callback(model.get_submodule(path).register_forward_pre_hook(self._at_norm(path)).remove)

    def _at_site(self, name: str) -> Any:
        def hook(projection: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            leaf = torch.zeros_like(output, requires_grad=True)
            self.leaves.setdefault(name, []).append(leaf)
            self.contexts.setdefault(name, []).append(args[0].detach())
            if name in self.norms:
                self.awaited.setdefault(self.norms[name], []).append(name)
            else:
                self.handed_on.setdefault(name, []).append(output.detach())
            return output + leaf

        return hook

    def _at_norm(self, path: str) -> Any:
        def hook(norm: nn.Module, args: tuple[Tensor, ...]) -> None:
            for name in self.awaited.pop(path, ()):
                self.handed_on.setdefault(name, []).append(args[0].detach())

        return hook


def _following_norms(model: nn.Module, task: Task, sites: Sequence[Site]) -> dict[str, str]:
    """The path of the normalisation that reads a site's output, alone or added to the residual stream.

    Found by trying: a change of the output must move the input of the next normalisation that it reaches by as much.
    Scaled or gated on the way, it does not, and the site is left out.
    """
    norms = {path: module for path, module in model.named_modules() if "norm" in type(module).__name__.lower()}
    shortest = min(range(len(task)), key=lambda index: task.lengths[index])
    batch = task.batch([shortest]).to(device_of(model))

    def inputs(change: Any = None, site: Site | None = None) -> Iterator[tuple[str, Tensor]]:
        seen: list[tuple[str, Tensor]] = []
        with ExitStack() as stack, torch.inference_mode():
            for path, norm in norms.items():
                note = lambda norm, args, path=path: seen.append((path, args[0].clone()))  # noqa: E731
                stack.callback(norm.register_forward_pre_hook(note).remove)
            if site is not None:
                stack.callback(site.output.register_forward_hook(change).remove)
            task.outputs(model, batch)
        return iter(seen)

    before, found = list(inputs()), {}
    for site in sites:
        changes: list[Tensor] = []

        def change(module: nn.Module, args: Any, output: Tensor, changes: list[Tensor] = changes) -> Tensor | None:
            if changes:  # a module that runs in several layers: the first tells
                return None
            generator = torch.Generator().manual_seed(0)
            changes.append(torch.randn(output.shape, generator=generator).to(output) * output.std())
            return output + changes[0]

        for (path, old), (_, new) in zip(before, inputs(change, site), strict=True):
            moved = (new - old).float()
            if not moved.any():
                continue
            expected = changes[0].float()
            if moved.numel() == expected.numel():
                error = (moved.reshape(-1) - expected.reshape(-1)).abs().max()
                if float(error) <= 0.02 * float(expected.abs().max()):
                    found[site.name] = path
            break
    return found


def _probe(logits: Tensor, batch: Batch) -> Tensor:
    """A number that depends on every logit that is used, and on nothing else."""
    chosen = logits.float()
    if batch.labels is not None and batch.labels.shape == logits.shape[:-1] and batch.labels.ndim > 1:
        chosen = chosen[batch.labels.to(logits.device) != -100]
    direction = torch.randn(chosen.shape[-1:], generator=torch.Generator().manual_seed(0)).to(chosen.device)
    return (F.log_softmax(chosen, dim=-1) * direction).sum()


def _rows(calls: list[Tensor]) -> Tensor:
    """(calls * B * T, d) one row for each token, also where a model drops the batch dimension on the way (OPT)."""
    return torch.cat([call.flatten(0, -2) for call in calls])


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

    The output of a finished layer is stored and returned in its place, and so is what a site put out that has been
    passed: nothing is attended to or multiplied twice. So a site must not change once a later one has been asked for.
    """

    def __init__(self, model: nn.Module, task: Task, batches: Sequence[Batch], sites: Sequence[Site]) -> None:
        self.model, self.task, self.batches = model, task, batches
        self.device = device_of(model)
        self.shared = any(site.also_layers for site in sites)  # ALBERT's one layer runs many times
        self.blocks = list(dict.fromkeys(site.block for site in sites))
        stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
        self.stack = {block: number for number, stack in enumerate(stacks) for block in stack}
        self.stored: list[dict[int, Any]] = [{} for _ in batches]  # per stack: the output of its last finished layer
        self.finished = 0  # how many of the blocks
        self.sites = {site.name: site for site in sites}
        self.contexts: list[dict[str, Tensor]] = [{} for _ in batches]  # of the site asked for last
        self.projected: list[dict[str, Tensor]] = [{} for _ in batches]  # by site of the layer that were passed before

    def handed_on(self, site: Site, norm: str | None) -> Iterator[tuple[Tensor | None, Tensor | None]]:
        """Per batch, all calls: the input of a site's projection (rows, width), and what the site passes on (rows, d).

        norm: the path of the normalisation that follows the site; without it, the projection's output is what counts.
        None stands for what is not computed: the input where no unit is left, and then perhaps the output, a bias.
        """
        self._pass_on()
        self._finish_before(site.block)
        for place, batch in enumerate(self.batches):
            contexts: list[Tensor] = []
            after: list[Tensor] = []

            def at_site(module: nn.Module, args: tuple[Tensor, ...], contexts: list[Tensor] = contexts) -> None:
                contexts.append(args[0])

            def then(
                module: nn.Module, args: tuple[Tensor, ...], output: Tensor | None = None, after: list[Tensor] = after
            ) -> None:
                after.append(args[0] if output is None else output)
                if not self.shared:
                    raise _StopForward

            with ExitStack() as stack:
                stack.callback(site.output.register_forward_pre_hook(at_site).remove)
                if norm is None:
                    stack.callback(site.output.register_forward_hook(then).remove)
                else:
                    stack.callback(self.model.get_submodule(norm).register_forward_pre_hook(then).remove)
                self._run(place, batch)
            if site.kept and len(contexts) == 1 and not self.shared:
                self.contexts[place][site.name] = contexts[0]
            yield _rows(contexts) if contexts and site.kept else None, _rows(after) if after else None

    @torch.inference_mode()
    def _pass_on(self) -> None:
        """Keep what the last site puts out, which has been changed since its units' outputs were seen."""
        for seen, projected in zip(self.contexts, self.projected, strict=True):
            projected |= {name: self.sites[name].output(context) for name, context in seen.items()}
            seen.clear()

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
        for projected in self.projected:
            projected.clear()

    def _run(self, place: int, batch: Batch) -> None:
        with Substitutes() as stubs, torch.inference_mode():
            for position in range(self.finished):
                answer = self.stored[place][self._stack(position)]
                stubs.put(self.blocks[position], lambda *args, answer=answer, **kwargs: answer)
            for name, output in self.projected[place].items():
                answer_at(stubs, self.sites[name], output)
            try:
                self.task.outputs(self.model, batch.to(self.device))
            except _StopForward:
                return

    def _stack(self, position: int) -> int:
        return self.stack.get(self.blocks[position], -1)
