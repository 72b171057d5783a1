"""Replay: a mask in one layer leaves everything below it untouched, so run only what lies above.

The unmasked model runs once per batch (`recording`). For masks at one site, the batch is then stacked once per mask.
Layers below the site return at once. The site puts out its recorded output minus the contributions of the heads that
are off, without attending again. Everything above is computed as usual, by the model's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headcount.evaluation.last_position import LastPosition
from headcount.evaluation.outcomes import Mask
from headcount.evaluation.recording import Recording
from headcount.structure import (
    Anatomy,
    AttentionSite,
    FeedForwardSite,
    Site,
    Substitutes,
    blank_context,
    hidden_of,
    is_transposed,
    with_hidden,
)


class Replay:
    """Runs a model again from one site on, with several masks of that site side by side.

    start: the site whose heads the masks turn off.
    position: where the last layer is read, if only one position of it is; used when the site allows it.
    fill: what a head that is off puts out instead of nothing: (heads, head_dim), or (B, T, heads, head_dim).
    """

    def __init__(
        self,
        model: nn.Module,
        found: Anatomy,
        recording: Recording,
        start: AttentionSite,
        *,
        position: LastPosition | None = None,
        fill: Tensor | None = None,
    ) -> None:
        self.recording, self.start = recording, start
        self.position = position if position is not None and position.allows(start) else None
        first = found.index(start.heads[0])
        self.heads = slice(first, first + len(start.kept))  # of all heads, in anatomy order
        self.stack_of = {
            layer: stack for stack in model.modules() if isinstance(stack, nn.ModuleList) for layer in stack
        }
        # In the last layer itself, only the position that is read goes through the masked site.
        self.cropped = self.position is not None and start.block is recording.layers[-1]
        crop = self.position.pick if self.position is not None and self.cropped else lambda tensor: tensor
        self.entering = crop(recording.inputs[start.block])  # (B, T, hidden)
        self.whole = crop(recording.projected[start.name])  # (B, T, hidden)
        fill = crop(fill) if fill is not None and fill.ndim == 4 else fill
        self.parts = head_parts(start, crop(recording.contexts[start.name]), fill)

    def run(self, xi: Tensor, call: Callable[[], Any]) -> Any:
        """Return what `call` does, which must run the model on the batch stacked M times, each copy under its mask.

        xi: (M, heads) in anatomy order, 1 at all other sites.
        """
        copies, layer = len(xi), self.start.block
        with Substitutes() as stubs:
            self._skip_below(stubs, copies)
            for site in self.recording.sites_of(layer):
                if site is self.start:
                    break
                if site.kept:  # an empty one runs: it attends to nothing
                    answer_at(stubs, site, _tile(self.recording.projected[site.name], copies))
            answer_at(stubs, self.start, self._masked_output(xi))
            entering = _tile(self.entering, copies)
            if self.position is not None and self.cropped:
                stubs.put(layer, self.position.computed_from(entering))
            else:
                stubs.put(layer, _entered_with(layer, entering))
                if self.position is not None:
                    stubs.put(self.position.layer, self.position.attending())
            if self.start.kind != "encoder":  # what the encoder said is as it was, and so are its keys and values
                for projection, output in self.recording.keys_values.items():
                    stubs.put(projection, _repeating(output, copies))
            return call()

    def _skip_below(self, stubs: Substitutes, copies: int) -> None:
        """Layers below pass on what they get; the last of another stack (an encoder's) repeats what it returned."""
        layers, start = self.recording.layers, self.start.block
        stacks = [self.stack_of.get(layer) for layer in layers]
        for place, layer in enumerate(layers[: layers.index(start)]):
            recorded = self.recording.outputs[layer]
            ends_another = stacks[place] is not stacks[place + 1] and stacks[place] is not self.stack_of.get(start)
            stubs.put(layer, _repeating(recorded, copies) if ends_another else _passing(recorded))

    def _masked_output(self, xi: Tensor) -> Tensor:
        """sum_h xi_h Att_h (M19 section 2.3), as the full output plus what changes: (M * B, T, hidden)"""
        change = xi[:, self.heads].to(self.whole) - 1  # (M, heads)
        flat = torch.addmm(self.whole.reshape(1, -1), change, self.parts.flatten(1))  # (M, B * T * hidden)
        return flat.view(len(xi) * len(self.whole), *self.whole.shape[1:])


def head_parts(site: AttentionSite, context: Tensor, fill: Tensor | None = None) -> Tensor:
    """Each head's contribution to the projection's output, M19's Att_h: (heads, B, T, hidden)

    With `fill`, ([B, T,] heads, head_dim), how much more it contributes than `fill` would in its place.
    """
    if fill is not None:
        context = context - fill.flatten(-2).to(context)
    weight = site.output.weight
    if weight.shape[0] != len(site.kept) * site.head_dim or hasattr(site.output, "in_features"):
        weight = weight.T  # (heads * head_dim, hidden)
    by_head = context.unflatten(-1, (len(site.kept), site.head_dim)).movedim(-2, 0)  # (heads, B, T, head_dim)
    flat = by_head.flatten(1, 2)  # (heads, B * T, head_dim)
    parts = torch.bmm(flat, weight.reshape(len(site.kept), site.head_dim, -1))
    return parts.unflatten(1, by_head.shape[1:3])


def mask_values(found: Anatomy, masks: Sequence[Mask], device: torch.device) -> Tensor:
    """xi of every head under every mask: (M, heads)"""
    xi = torch.ones(len(masks), len(found.heads))
    for row, mask in enumerate(masks):
        for head in mask:
            xi[row, found.index(head)] = 0.0
    return xi.to(device)


def answer_at(stubs: Substitutes, site: Site, projected: Tensor) -> None:
    """Let a site put out `projected` without attending, or without computing its neurons."""
    finish: Any = site.family.emptied.finish

    def attend(*args: Any, **kwargs: Any) -> Any:
        return finish(site.module, projected, hidden_of(args, kwargs), args, kwargs)

    def leave_to_projection(*args: Any, **kwargs: Any) -> Any:
        return blank_context(site, hidden_of(args, kwargs)), None

    if isinstance(site, FeedForwardSite):
        for _, projection in site.inputs:
            width = projection.weight.shape[1 if is_transposed(projection) else 0]
            stubs.put(projection, lambda hidden, width=width: hidden.new_zeros(()).expand(*hidden.shape[:-1], width))
        stubs.put(site.output, lambda context: projected)
    elif site.family.output.startswith("^"):  # the projection is its parent's
        stubs.put(site.module, leave_to_projection)
        stubs.put(site.output, lambda context: projected)
    else:
        stubs.put(site.module, attend)


def _entered_with(layer: nn.Module, hidden: Tensor) -> Callable[..., Any]:
    """The layer as it is, but for the hidden states that it is given."""
    own = layer.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = with_hidden(args, kwargs, hidden)
        return own(*args, **kwargs)

    return forward


def _passing(recorded: Any) -> Callable[..., Any]:
    """A layer that returns its input, in the form in which it returned its output before."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden = hidden_of(args, kwargs)
        return (hidden, *recorded[1:]) if isinstance(recorded, tuple) else hidden

    return forward


def _repeating(recorded: Any, copies: int) -> Callable[..., Any]:
    """A layer or projection that returns what it returned before, stacked."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        if isinstance(recorded, tuple):
            return (_tile(recorded[0], copies), *recorded[1:])
        return _tile(recorded, copies)

    return forward


def _tile(tensor: Tensor, copies: int) -> Tensor:
    """Stacked copies: (B, …) to (copies * B, …)."""
    return tensor.repeat(copies, *[1] * (tensor.ndim - 1))
