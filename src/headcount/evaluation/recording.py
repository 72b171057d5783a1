"""One pass of the whole model, with everything kept that a replay of its upper part needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headcount.structure import Anatomy, AttentionSite, Substitutes, hidden_of


@dataclass
class Recording:
    """What went in and out of every layer and attention site when the unmasked model ran on a batch."""

    size: int  # examples in the batch
    result: Any = None  # what the run returned
    layers: list[nn.Module] = field(default_factory=list)  # in the order in which they ran
    inputs: dict[nn.Module, Tensor] = field(default_factory=dict)  # layer -> (B, T, hidden)
    outputs: dict[nn.Module, Any] = field(default_factory=dict)  # layer -> what it returned
    sites: list[AttentionSite] = field(default_factory=list)  # in the order in which they ran
    contexts: dict[str, Tensor] = field(default_factory=dict)  # site -> (B, T, heads * head_dim)
    projected: dict[str, Tensor] = field(default_factory=dict)  # site -> (B, T, hidden)
    keys_values: dict[nn.Module, Tensor] = field(default_factory=dict)  # cross-attention's projections -> (B, S, …)
    attended: dict[str, Tensor] = field(default_factory=dict)  # site -> what its module was called with

    @property
    def once(self) -> bool:
        """Whether every layer ran exactly once, so that it can be replayed from any of them."""
        return len(set(self.layers)) == len(self.layers) and len(set(map(id, self.sites))) == len(self.sites)

    def sites_of(self, layer: nn.Module) -> list[AttentionSite]:
        """The sites of a layer, in the order in which they ran."""
        return [site for site in self.sites if site.block is layer]


def record(found: Anatomy, size: int, run: Callable[[], Any]) -> Recording:
    """Run the model and keep what each layer and site saw and said."""
    seen = Recording(size)
    with Substitutes() as hooks:
        for layer in dict.fromkeys(site.block for site in found.sites):
            hooks.callback(layer.register_forward_pre_hook(_enter_layer(seen), with_kwargs=True).remove)
            hooks.callback(layer.register_forward_hook(_leave_layer(seen)).remove)
        for site in found.sites:
            hooks.callback(site.module.register_forward_pre_hook(_enter_site(seen, site), with_kwargs=True).remove)
            hooks.callback(site.output.register_forward_hook(_project(seen, site)).remove)
            if site.kind == "cross":
                for part, module in site.inputs:
                    if part.rows == ("kv",):
                        hooks.callback(module.register_forward_hook(_keep(seen)).remove)
        seen.result = run()
    return seen


def _enter_layer(seen: Recording) -> Any:
    def hook(layer: nn.Module, args: Any, kwargs: Any) -> None:
        seen.layers.append(layer)
        seen.inputs[layer] = hidden_of(args, kwargs)

    return hook


def _leave_layer(seen: Recording) -> Any:
    def hook(layer: nn.Module, args: Any, output: Any) -> None:
        seen.outputs[layer] = output

    return hook


def _enter_site(seen: Recording, site: AttentionSite) -> Any:
    def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
        seen.sites.append(site)
        seen.attended[site.name] = hidden_of(args, kwargs)

    return hook


def _project(seen: Recording, site: AttentionSite) -> Any:
    def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        seen.contexts[site.name], seen.projected[site.name] = args[0], output

    return hook


def _keep(seen: Recording) -> Any:
    def hook(module: nn.Module, args: Any, output: Tensor) -> None:
        seen.keys_values[module] = output

    return hook


def head_parts(site: AttentionSite, context: Tensor, fill: Tensor | None = None) -> Tensor:
    """Each head's own contribution to the projection's output, M19's Att_h: (heads, B, T, hidden)

    With `fill`, (heads, head_dim), what it contributes more than it would with that output.
    """
    if fill is not None:
        context = context - fill.flatten().to(context)
    weight = site.output.weight
    if weight.shape[0] != len(site.kept) * site.head_dim or hasattr(site.output, "in_features"):
        weight = weight.T  # (heads * head_dim, hidden)
    by_head = context.unflatten(-1, (len(site.kept), site.head_dim)).movedim(-2, 0)  # (heads, B, T, head_dim)
    flat = by_head.flatten(1, 2)  # (heads, B * T, head_dim)
    parts = torch.bmm(flat, weight.reshape(len(site.kept), site.head_dim, -1))
    return parts.unflatten(1, by_head.shape[1:3])
