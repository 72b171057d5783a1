"""Where only one position of the last layer is read (a classifier's first token), compute only that position.

A single query needs no keys and values of its own: with x the layer's input, `q W_k x_t` is `(q W_k) x_t` and
`sum_t a_t W_v x_t` is `W_v sum_t a_t x_t`. So the last layer costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from headcount.evaluation.recording import Recording
from headcount.structure import AttentionSite, Substitutes, blank_context, hidden_of, with_hidden


class Reading:
    """The one position per example at which the last layer is read."""

    def __init__(self, seen: Recording, positions: Tensor, norm: nn.Module | None, direct: bool) -> None:
        self.seen, self.positions = seen, positions  # positions: (B,)
        self.last = seen.layers[-1]
        self.site = seen.sites_of(self.last)[0]
        self.norm, self.direct = norm, direct

    def allows(self, start: AttentionSite) -> bool:
        """Whether a replay from `start` can leave out the other positions."""
        return start.block is self.last or (self.direct and self.site.family.plain and self.site.kind != "decoder")

    def pick(self, tensor: Tensor) -> Tensor:
        """The position that is read: (B, T, …) to (B, 1, …)."""
        copies = len(tensor) // len(self.positions)
        rows = torch.arange(len(tensor), device=tensor.device)
        return tensor[rows, self.positions.to(tensor.device).repeat(copies)][:, None]

    def enter(self, stubs: Substitutes, layer: nn.Module, entering: Tensor, copies: int) -> None:
        """Let the last layer see only the position that is read; what it says is put back in its place."""
        own = layer.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            full = hidden_of(args, kwargs)  # (M * B, T, hidden)
            args, kwargs = with_hidden(args, kwargs, entering)
            return self._spread(own(*args, **kwargs), full)

        stubs.put(layer, forward)

    def attend(self, stubs: Substitutes, layer: nn.Module, copies: int) -> None:
        """The same for a layer above the masked one: its single query attends to all of its input."""
        own, site = layer.forward, self.site
        finish: Any = site.family.emptied.finish
        kept: dict[str, Tensor] = {}

        def forward(*args: Any, **kwargs: Any) -> Any:
            kept["full"] = full = hidden_of(args, kwargs)  # (M * B, T, hidden)
            args, kwargs = with_hidden(args, kwargs, self.pick(full))
            return self._spread(own(*args, **kwargs), full)

        def answer(*args: Any, **kwargs: Any) -> Any:
            mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None)
            source = kept["full"] if self.norm is None else self.norm(kept["full"])
            kept["context"] = self._single_query(source, mask)
            hidden = hidden_of(args, kwargs)
            if site.family.output.startswith("^"):
                return blank_context(site, hidden), None
            return finish(site.module, site.output(kept["context"]), hidden, args, kwargs)

        stubs.put(layer, forward)
        stubs.put(site.module, answer)
        if site.family.output.startswith("^"):
            project = site.output.forward
            stubs.put(site.output, lambda context: project(kept["context"]))

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

    def _spread(self, output: Any, full: Tensor) -> Any:
        """Put the computed position back into a tensor of all positions."""
        hidden = output[0] if isinstance(output, tuple) else output  # (N, 1, hidden)
        rows = torch.arange(len(full), device=full.device)
        spread = full.new_zeros(*full.shape[:2], hidden.shape[-1])
        spread[rows, self.positions.to(full.device).repeat(len(full) // len(self.positions))] = hidden[:, 0]
        return (spread, *output[1:]) if isinstance(output, tuple) else spread


def find_reading(seen: Recording, call: Callable[[], Any]) -> Reading | None:
    """See by its gradient whether the result depends on one position per example of the last layer's output only."""
    last = seen.layers[-1]
    sites = seen.sites_of(last)
    recorded = seen.outputs[last]
    hidden = recorded[0] if isinstance(recorded, tuple) else recorded
    if len(sites) != 1 or hidden.ndim != 3 or len(hidden) != seen.size or any(site.also_layers for site in sites):
        return None
    with torch.inference_mode(False), torch.enable_grad(), Substitutes() as stubs:
        leaf = hidden.clone().detach().requires_grad_()
        for layer in seen.layers[:-1]:
            stubs.put(layer, _returning(seen.outputs[layer]))
        stubs.put(last, lambda *args, **kwargs: (leaf, *recorded[1:]) if isinstance(recorded, tuple) else leaf)
        result = call()
        spread = torch.randn(result.shape, generator=torch.Generator().manual_seed(0)).to(result)
        torch.autograd.backward((result * spread).sum(), inputs=[leaf])
    if leaf.grad is None:
        return None
    read = leaf.grad.abs().sum(dim=-1) > 0  # (B, T)
    if not bool((read.sum(dim=1) == 1).all()):
        return None
    attended, entered = seen.attended[sites[0].name], seen.inputs[last]
    norm = None
    direct = attended is entered or torch.equal(attended, entered)
    if not direct:
        norm = _norm_before(last, attended, entered)
    return Reading(seen, read.int().argmax(dim=1), norm, direct or norm is not None)


def _norm_before(layer: nn.Module, attended: Tensor, entered: Tensor) -> nn.Module | None:
    """The normalisation between a layer's input and its attention, if that is all there is between them."""
    for module in layer.children():
        if "norm" in type(module).__name__.lower() and torch.equal(module(entered), attended):
            return module
    return None


def _returning(output: Any) -> Any:
    """A layer that returns this, as tensors that autograd can handle."""
    if isinstance(output, tuple):
        output = tuple(one.clone() if isinstance(one, Tensor) else one for one in output)
    else:
        output = output.clone()
    return lambda *args, **kwargs: output
