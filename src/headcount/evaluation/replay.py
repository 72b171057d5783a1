"""Replay: a mask in one layer leaves everything below untouched, so start there, with many masks at once.

The unmasked model runs once per batch (`recording`). For masks that begin at a site, the batch is stacked once per
mask; layers below return at once, the site puts out its recorded output minus the silent heads' contributions, without
attending again, and only what lies above is computed. All glue between the layers is the model's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headcount.evaluation.last_position import Reading
from headcount.evaluation.outcomes import Mask
from headcount.evaluation.recording import Recording, head_parts
from headcount.structure import Anatomy, AttentionSite, Substitutes, blank_context, hidden_of, with_hidden


class Replay:
    """Runs the upper part of a model again, under several masks at a time, from one recording."""

    def __init__(
        self,
        model: nn.Module,
        found: Anatomy,
        seen: Recording,
        reading: Reading | None = None,
        fill: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.found, self.seen, self.reading = found, seen, reading
        self.fill = fill or {}
        self.stack_of = {
            layer: stack for stack in model.modules() if isinstance(stack, nn.ModuleList) for layer in stack
        }
        self.parts: tuple[str, Tensor] | None = None

    def run(self, start: AttentionSite, xi: Tensor, call: Callable[[], Any]) -> Any:
        """Do `call`, which runs the model on the batch stacked len(xi) times, with each copy under its mask.

        `start` is the only site at which the masks differ from 1; `xi` is (M, heads) in anatomy order.
        """
        copies, layer, last = len(xi), start.block, self.seen.layers[-1]
        single = self.reading if self.reading is not None and self.reading.allows(start) else None
        with Substitutes() as stubs:
            self._skip_below(stubs, layer, copies)
            for site in self.seen.sites_of(layer):
                if site is start:
                    break
                self._answer(stubs, site, _tile(self.seen.projected[site.name], copies))
            crop = single is not None and layer is last
            self._answer(stubs, start, self._masked_output(start, xi, crop))
            entering = self.seen.inputs[layer]
            if crop and single is not None:
                single.enter(stubs, last, _tile(single.pick(entering), copies), copies)
            else:
                self._enter(stubs, layer, _tile(entering, copies))
                if single is not None:
                    single.attend(stubs, last, copies)
            if start.kind != "encoder":
                for module, output in self.seen.keys_values.items():
                    stubs.put(module, _answering(output, copies))
            return call()

    def _skip_below(self, stubs: Substitutes, layer: nn.Module, copies: int) -> None:
        """Layers below pass on what they get; the last of another stack (an encoder's) says what it said before."""
        below = self.seen.layers[: self.seen.layers.index(layer)]
        for position, skipped in enumerate(below):
            stack = self.stack_of.get(skipped)
            own = stack is self.stack_of.get(layer)
            ends = position + 1 == len(below) or self.stack_of.get(below[position + 1]) is not stack
            stubs.put(skipped, _repeating(self.seen.outputs[skipped], copies if ends and not own else None))

    def _enter(self, stubs: Substitutes, layer: nn.Module, entering: Tensor) -> None:
        own = layer.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = with_hidden(args, kwargs, entering)
            return own(*args, **kwargs)

        stubs.put(layer, forward)

    def _answer(self, stubs: Substitutes, site: AttentionSite, projected: Tensor) -> None:
        """Let a site put out `projected` without attending."""
        module = site.module
        finish: Any = site.family.emptied.finish

        def forward(*args: Any, **kwargs: Any) -> Any:
            return finish(module, projected, hidden_of(args, kwargs), args, kwargs)

        def contexts(*args: Any, **kwargs: Any) -> Any:
            return blank_context(site, hidden_of(args, kwargs)), None

        if site.family.output.startswith("^"):
            stubs.put(module, contexts)
            stubs.put(site.output, lambda context: projected)
        else:
            stubs.put(module, forward)

    def _masked_output(self, site: AttentionSite, xi: Tensor, crop: bool) -> Tensor:
        """sum_h xi_h Att_h (M19 section 2.3) as the full output and what changes: (M * B, T, hidden)"""
        whole, context = self.seen.projected[site.name], self.seen.contexts[site.name]
        if crop and self.reading is not None:
            whole, context = self.reading.pick(whole), self.reading.pick(context)
            parts = head_parts(site, context, self.fill.get(site.name))
        else:
            if self.parts is None or self.parts[0] != site.name:
                self.parts = site.name, head_parts(site, context, self.fill.get(site.name))
            parts = self.parts[1]
        first = self.found.index(site.heads[0])
        change = xi[:, first : first + len(site.kept)].to(whole) - 1  # (M, heads)
        flat = torch.addmm(whole.reshape(1, -1), change, parts.flatten(1))  # (M, B * T * hidden)
        return flat.view(len(xi) * whole.shape[0], *whole.shape[1:])


def mask_values(found: Anatomy, masks: Sequence[Mask], device: torch.device) -> Tensor:
    """xi of every head under every mask: (M, heads)"""
    xi = torch.ones(len(masks), len(found.heads))
    for row, mask in enumerate(masks):
        for head in mask:
            xi[row, found.index(head)] = 0.0
    return xi.to(device)


def _tile(tensor: Tensor, copies: int) -> Tensor:
    """Stacked copies: (B, …) to (copies * B, …)."""
    return tensor.repeat(copies, *[1] * (tensor.ndim - 1))


def _answering(output: Tensor, copies: int) -> Any:
    return lambda *args, **kwargs: _tile(output, copies)


def _repeating(recorded: Any, copies: int | None) -> Any:
    """A layer that returns what it returned before, or with no `copies`, its input in the same form."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        whole = recorded if isinstance(recorded, tuple) else (recorded,)
        hidden = hidden_of(args, kwargs) if copies is None else _tile(whole[0], copies)
        return (hidden, *whole[1:]) if isinstance(recorded, tuple) else hidden

    return forward
