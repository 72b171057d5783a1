"""Where only one position of the last layer is read (a classifier's first token), compute only that position.

A single query q needs no keys and values of its own. With x the layer's input, `q W_k x_t` is `(q W_k) x_t` and
`sum_t a_t W_v x_t` is `W_v sum_t a_t x_t`, so the last layer costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headcount.evaluation.recording import Recording
from headcount.structure import AttentionSite, Substitutes, hidden_of, with_hidden


@dataclass(frozen=True, eq=False)
class LastPosition:
    """The one position of each example at which the last layer's output is read."""

    layer: nn.Module  # the last one
    site: AttentionSite  # its attention
    positions: Tensor  # (B,)
    norm: nn.Module | None  # applied to the layer's input before it attends
    direct: bool  # nothing but `norm` lies between the layer's input and its attention

    def allows(self, start: AttentionSite) -> bool:
        """Whether a replay from `start` can leave out the other positions."""
        simple = self.site.family.plain and self.site.kind != "decoder"  # `_single_query` is all of its attention
        return start.block is self.layer or (self.direct and simple)

    def pick(self, tensor: Tensor) -> Tensor:
        """The position that is read: (N, T, …) to (N, 1, …), for any number of stacked copies of the batch."""
        return tensor[self._rows_and_positions(tensor)][:, None]

    def computed_from(self, entering: Tensor) -> Callable[..., Any]:
        """A forward pass of the last layer at the position that is read, when its input there is known: (N, 1, hidden)

        For masks in the last layer itself.
        """
        own = self.layer.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._at_position(own, entering, args, kwargs)

        return forward

    def attending(self) -> Callable[..., Any]:
        """A forward pass of the last layer in which only the position that is read attends, to all of the input.

        For masks in layers below: the input is what they make of it.
        """
        own, site = self.layer.forward, self.site
        finish: Any = site.family.emptied.finish

        def forward(*args: Any, **kwargs: Any) -> Any:
            full = hidden_of(args, kwargs)  # (N, T, hidden)
            if not site.kept:  # nothing attends
                return self._at_position(own, self.pick(full), args, kwargs)
            source = full if self.norm is None else self.norm(full)

            def attend(*args: Any, **kwargs: Any) -> Any:
                mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
                context = self._single_query(source, mask)
                if site.family.output.startswith("^"):  # the projection is its parent's
                    return context, None
                return finish(site.module, site.output(context), hidden_of(args, kwargs), args, kwargs)

            with Substitutes() as stubs:
                stubs.put(site.module, attend)
                return self._at_position(own, self.pick(full), args, kwargs)

        return forward

    def _single_query(self, source: Tensor, mask: Tensor | None) -> Tensor:
        """The heads' outputs at the position that is read: (N, T, hidden) to (N, 1, heads * head_dim)."""
        heads, size = len(self.site.kept), self.site.head_dim
        (_, query), (_, key), (_, value) = self.site.inputs
        q = query(self.pick(source)).view(-1, heads, size)  # (N, heads, head_dim)
        by_head = key.weight.view(heads, size, -1)
        # The key's bias adds the same to every score of a query: softmax does not see it.
        asked = torch.bmm(q.transpose(0, 1), by_head).transpose(0, 1)  # (N, heads, hidden)
        scores = torch.bmm(asked, source.transpose(1, 2)) * size**-0.5  # (N, heads, T)
        if mask is not None:
            row = mask[:, :, 0] if mask.shape[2] == 1 else self.pick(mask.transpose(1, 2))[:, 0]  # (N, 1, T)
            scores = scores.masked_fill(~row, -torch.inf) if row.dtype == torch.bool else scores + row
        weights = scores.softmax(dim=-1)
        gathered = torch.bmm(weights, source).transpose(0, 1)  # (heads, N, hidden)
        context = torch.bmm(gathered, value.weight.view(heads, size, -1).transpose(1, 2)).transpose(0, 1)
        context = context.reshape(-1, 1, heads * size)
        return context if value.bias is None else context + value.bias

    def _at_position(self, forward: Callable[..., Any], one: Tensor, args: Any, kwargs: Any) -> Any:
        """Run the layer on one position, (N, 1, hidden), and put its output back among zeros for all others."""
        full = hidden_of(args, kwargs)  # (N, T, hidden)
        args, kwargs = with_hidden(args, kwargs, one)
        output = forward(*args, **kwargs)
        hidden = output[0] if isinstance(output, tuple) else output  # (N, 1, hidden)
        spread = full.new_zeros(*full.shape[:2], hidden.shape[-1])
        spread[self._rows_and_positions(full)] = hidden[:, 0]
        return (spread, *output[1:]) if isinstance(output, tuple) else spread

    def _rows_and_positions(self, tensor: Tensor) -> tuple[Tensor, Tensor]:
        copies = len(tensor) // len(self.positions)
        return torch.arange(len(tensor), device=tensor.device), self.positions.to(tensor.device).repeat(copies)


def find_last_position(recording: Recording, call: Callable[[], Any]) -> LastPosition | None:
    """The position per example on which the result depends, if it depends on only one of the last layer's output.

    The gradient of the result tells. `call` must do again what was recorded.
    """
    last = recording.layers[-1]
    sites = recording.sites_of(last)
    recorded = recording.outputs[last]
    hidden = recorded[0] if isinstance(recorded, tuple) else recorded
    if len(sites) != 1 or hidden.ndim != 3 or len(hidden) != recording.size or sites[0].also_layers:
        return None
    with torch.inference_mode(False), torch.enable_grad(), Substitutes() as stubs:
        leaf = hidden.clone().detach().requires_grad_()
        for layer in recording.layers[:-1]:
            stubs.put(layer, _returning(recording.outputs[layer]))
        stubs.put(last, lambda *args, **kwargs: (leaf, *recorded[1:]) if isinstance(recorded, tuple) else leaf)
        result = call()
        directions = torch.randn(result.shape, generator=torch.Generator().manual_seed(0)).to(result)
        torch.autograd.backward((result * directions).sum(), inputs=[leaf])
    if leaf.grad is None:
        return None
    read = leaf.grad.abs().sum(dim=-1) > 0  # (B, T)
    if not bool((read.sum(dim=1) == 1).all()):
        return None
    attended, entered = recording.attended[sites[0].name], recording.inputs[last]
    direct = attended is entered or torch.equal(attended, entered)
    norm = None if direct else _norm_before(last, attended, entered)
    return LastPosition(last, sites[0], read.int().argmax(dim=1), norm, direct or norm is not None)


def _norm_before(layer: nn.Module, attended: Tensor, entered: Tensor) -> nn.Module | None:
    """The normalisation between a layer's input and its attention, if that is all there is between them."""
    for module in layer.children():
        if "norm" in type(module).__name__.lower() and torch.equal(module(entered), attended):
            return module
    return None


def _returning(output: Any) -> Callable[..., Any]:
    """A layer that returns this, in tensors that autograd can handle."""
    if isinstance(output, tuple):
        copied: Any = tuple(one.clone() if isinstance(one, Tensor) else one for one in output)
    else:
        copied = output.clone()
    return lambda *args, **kwargs: copied
