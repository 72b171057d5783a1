"""One pass of the unmasked model over a batch, with everything kept that a replay of its upper part needs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from headcount.structure import Anatomy, AttentionSite, hidden_of


@dataclass(frozen=True, eq=False)
class Recording:
    """What went into and came out of every layer and attention site."""

    size: int  # examples in the batch
    result: Any  # what the pass returned
    layers: tuple[nn.Module, ...]  # in the order in which they ran
    sites: tuple[AttentionSite, ...]  # in the order in which they ran
    inputs: dict[nn.Module, Tensor]  # layer -> (B, T, hidden)
    outputs: dict[nn.Module, Any]  # layer -> what it returned
    attended: dict[str, Tensor]  # site -> (B, T, hidden), the hidden states its module was called with
    contexts: dict[str, Tensor]  # site -> (B, T, heads * head_dim), the heads' outputs side by side
    projected: dict[str, Tensor]  # site -> (B, T, hidden), what the output projection made of them
    keys_values: dict[nn.Module, Tensor]  # key and value projections of cross-attention -> (B, S, …)

    @property
    def once(self) -> bool:
        """Whether every layer and site ran exactly once, so that the model can be replayed from any of them."""
        return len(set(self.layers)) == len(self.layers) and len(set(map(id, self.sites))) == len(self.sites)

    def sites_of(self, layer: nn.Module) -> list[AttentionSite]:
        """The sites of a layer, in the order in which they ran."""
        return [site for site in self.sites if site.block is layer]


def record(found: Anatomy, size: int, run: Callable[[], Any]) -> Recording:
    """Run the model on a batch of `size` examples by calling `run`, and keep what every layer and site did."""
    layers: list[nn.Module] = []
    sites: list[AttentionSite] = []
    inputs: dict[nn.Module, Tensor] = {}
    outputs: dict[nn.Module, Any] = {}
    attended: dict[str, Tensor] = {}
    contexts: dict[str, Tensor] = {}
    projected: dict[str, Tensor] = {}
    keys_values: dict[nn.Module, Tensor] = {}

    def enter_layer(layer: nn.Module, args: Any, kwargs: Any) -> None:
        layers.append(layer)
        inputs[layer] = hidden_of(args, kwargs)

    def leave_layer(layer: nn.Module, args: Any, output: Any) -> None:
        outputs[layer] = output

    def enter_site(site: AttentionSite, module: nn.Module, args: Any, kwargs: Any) -> None:
        sites.append(site)
        attended[site.name] = hidden_of(args, kwargs)

    def leave_projection(site: AttentionSite, projection: nn.Module, args: Any, output: Tensor) -> None:
        contexts[site.name], projected[site.name] = args[0], output

    def leave_key_or_value(projection: nn.Module, args: Any, output: Tensor) -> None:
        keys_values[projection] = output

    with ExitStack() as hooks:
        for layer in dict.fromkeys(site.block for site in found.sites):
            hooks.callback(layer.register_forward_pre_hook(enter_layer, with_kwargs=True).remove)
            hooks.callback(layer.register_forward_hook(leave_layer).remove)
        for site in found.sites:
            entered = site.module.register_forward_pre_hook(partial(enter_site, site), with_kwargs=True)
            hooks.callback(entered.remove)
            hooks.callback(site.output.register_forward_hook(partial(leave_projection, site)).remove)
            for part, projection in site.inputs if site.kind == "cross" else ():
                if part.rows == ("kv",):
                    hooks.callback(projection.register_forward_hook(leave_key_or_value).remove)
        result = run()
    return Recording(
        size, result, tuple(layers), tuple(sites), inputs, outputs, attended, contexts, projected, keys_values
    )
