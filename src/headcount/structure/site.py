"""`Site`: one place in a model where units of one width lie side by side, in attention or in a feed-forward layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from headcount.errors import counted
from headcount.heads import Head
from headcount.structure.families import Family, FeedForward, Part, inside
from headcount.structure.layout import Layout, positions


@dataclass(frozen=True, eq=False, kw_only=True)
class Site:
    """A place in a model where units of one width lie side by side: the input of its output projection.

    path, module: what computes the units. block: the Transformer layer around it. output: the projection. layout: which
    units are left. width: the size of one. also_layers: further layers that run this very module. family: how the
    attention of its layer is built.
    """

    kind: str
    layer: int
    path: str
    module: nn.Module
    block: nn.Module
    output: Any
    layout: Layout
    width: int
    family: Family
    also_layers: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Kind and layer, for example `encoder.3`."""
        return f"{self.kind}.{self.layer}"

    @property
    def unit(self) -> str:
        """What one of its units is called."""
        return "head"

    @property
    def kept(self) -> tuple[int, ...]:
        """The units left, by original index, in the order of their weights."""
        return self.layout.kept

    @property
    def original(self) -> int:
        """How many units the site was trained with."""
        return self.layout.original

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        """The addresses of the units left, in the order of their weights."""
        return tuple(Head(self.kind, self.layer, index) for index in self.kept)

    @cached_property
    def places(self) -> dict[int, int]:
        """Where each unit left, by original index, is among the weights."""
        return {index: place for place, index in enumerate(self.kept)}

    @property
    def inputs(self) -> list[tuple[Part, Any]]:
        """The projections that make the units, with how units lie in them."""
        raise NotImplementedError

    def rows(self, part: Part, kept: Iterable[int]) -> list[int]:
        """The rows of a projection that the given units, by original index, use."""
        rows: list[int] = []
        start = 0
        for here, chosen, size in self._stretches(part, kept):
            for position in positions(chosen, here):
                rows.extend(range(start + position * size, start + (position + 1) * size))
            start += size * len(here)
        return rows

    def parameters_of(self, kept: Iterable[int]) -> int:
        """How many parameters of the site belong to the given units (its output bias belongs to none)."""
        kept = list(kept)
        total = self.output.weight.numel() // max(len(self.kept), 1) * len(kept)
        for part, module in self.inputs:
            stretches = list(self._stretches(part, kept))
            per_row = module.weight.numel() // max(sum(len(here) * size for here, _, size in stretches), 1)
            rows = sum(len(chosen) * size for _, chosen, size in stretches)
            total += rows * (per_row + (module.bias is not None))
        return total

    def _stretches(self, part: Part, kept: Iterable[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
        """Of each stretch of rows: the units that have rows there, the given ones among them, and rows per unit."""
        wanted = self.layout.keeping(list(kept))
        for stretch in part.stretches(self.module):
            here, chosen = (self.layout.kv_kept, wanted.kv_kept) if stretch == "kv" else (self.kept, wanted.kept)
            yield here, chosen, self.width * (3 if stretch == "qkv" else 1)

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self.kept)} {self.unit}s of {self.width}, {self.path}>"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AttentionSite(Site):
    """One attention block; its units are heads, and several of them may share a key-value head."""

    @property
    def head_dim(self) -> int:
        """The size of a head."""
        return self.width

    @property
    def is_causal(self) -> bool:
        """Whether a token sees only the tokens before it."""
        return self.kind in self.family.causal

    @property
    def group(self) -> int:
        """How many query heads shared one key-value head before any was removed."""
        return self.layout.group

    @property
    def kv_kept(self) -> tuple[int, ...]:
        """The key-value heads left: those that at least one query head still uses."""
        return self.layout.kv_kept

    @property
    def inputs(self) -> list[tuple[Part, Any]]:
        """The query, key and value projections, with how heads lie in them."""
        found = [(part, getattr(self.module, part.path, None)) for part in self.family.inputs]
        return [(part, module) for part, module in found if module is not None]

    @property
    def shared(self) -> dict[str, int]:
        """Tensors of the module that serve other layers too: their names in the model, and the axis of heads."""
        here = dict(self.module.named_parameters())
        return {f"{self.path}.{name}": axis for name, axis in self.family.shared.items() if name in here}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FeedForwardSite(Site):
    """One feed-forward layer; its units are neurons, heads of width 1. `module` is the output projection itself."""

    feed_forward: FeedForward

    @property
    def unit(self) -> str:
        return "neuron"

    @property
    def inputs(self) -> list[tuple[Part, Any]]:
        """The projections that make the neurons, gate before up, with how neurons lie in them."""
        found = [(part, inside(self.block, part.path)[1]) for part in self.feed_forward.inputs]
        return [(part, module) for part, module in found if module is not None]

    def __repr__(self) -> str:
        return f"<{self.name}: {counted(len(self.kept), 'neuron')}, {self.path}>"
