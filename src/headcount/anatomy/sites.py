"""`AttentionSite`, one attention block of a model, and `Anatomy`, all of them in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from headcount.anatomy.family import Family, Part
from headcount.errors import HeadcountError, unknown
from headcount.heads import Head, parse_heads


@dataclass(frozen=True, eq=False)
class AttentionSite:
    """One attention block.

    `kept` are the heads it has, by their original index, in the order in which they lie in the weights; `original`
    is how many it was trained with, `group` how many query heads shared one key-value head then.
    """

    kind: str
    layer: int
    path: str
    module: nn.Module
    block: nn.Module  # the Transformer layer around it
    output: Any  # its input is the heads' outputs, side by side
    family: Family
    head_dim: int
    kept: tuple[int, ...]
    original: int
    group: int
    built: tuple[int, ...]  # the heads that a model built from the configuration has
    also_layers: tuple[int, ...] = ()  # further layers that share this very module

    @property
    def name(self) -> str:
        """Kind and layer, for example `encoder.3`."""
        return f"{self.kind}.{self.layer}"

    @property
    def heads(self) -> tuple[Head, ...]:
        """The heads that are there, in the order of their weights."""
        return tuple(Head(self.kind, self.layer, index) for index in self.kept)

    @property
    def kv_kept(self) -> tuple[int, ...]:
        """The key-value heads that are there: those with a query head left."""
        return tuple(sorted({index // self.group for index in self.kept}))

    @property
    def inputs(self) -> list[tuple[Part, Any]]:
        """The query, key and value projections, with how heads lie in them."""
        found = [(part, getattr(self.module, part.path, None)) for part in self.family.inputs]
        return [(part, module) for part, module in found if module is not None]

    def rows(self, part: Part, kept: Iterable[int]) -> list[int]:
        """The rows of a projection that the given heads, by original index, use."""
        if part.path == "c_attn" and hasattr(self.module, "q_attn"):
            part = Part(part.path, ("kv", "kv"))  # GPT-2's cross-attention has its queries apart
        kept = list(kept)
        here = {"q": self.kept, "qkv": self.kept, "kv": self.kv_kept}
        wanted = {"q": kept, "qkv": kept, "kv": sorted({index // self.group for index in kept})}
        rows: list[int] = []
        start = 0
        for stretch in part.rows:
            width = self.head_dim * (3 if stretch == "qkv" else 1)
            for index in wanted[stretch]:
                first = start + here[stretch].index(index) * width
                rows.extend(range(first, first + width))
            start += width * len(here[stretch])
        return rows

    def parameters_of(self, kept: Iterable[int]) -> int:
        """How many parameters of the site belong to the given heads (its output bias belongs to none)."""
        kept = list(kept)
        total = self.output.weight.numel() // max(len(self.kept), 1) * len(kept)
        for part, module in self.inputs:
            per_row = module.weight.numel() // max(len(self.rows(part, self.kept)), 1)
            total += len(self.rows(part, kept)) * (per_row + (module.bias is not None))
        return total

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self.kept)} heads of {self.head_dim}, {self.path}>"


@dataclass(frozen=True, eq=False)
class Anatomy:
    """All attention sites of a model: encoder before decoder before cross, and by layer."""

    sites: tuple[AttentionSite, ...]

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        """Every head that is there, in order."""
        return tuple(head for site in self.sites for head in site.heads)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The attention kinds of the model, in order."""
        return tuple(dict.fromkeys(site.kind for site in self.sites))

    @cached_property
    def _by_name(self) -> dict[str, AttentionSite]:
        return {site.name: site for site in self.sites}

    def site(self, name: str | Head) -> AttentionSite:
        """The site of a head, or of a name such as `encoder.3`."""
        key = name.site if isinstance(name, Head) else name
        if key not in self._by_name:
            raise HeadcountError(unknown("attention site", key, self._by_name))
        return self._by_name[key]

    def check(self, heads: Iterable[Head | str] | str) -> tuple[Head, ...]:
        """Read heads and make sure that each exists in this model, once."""
        parsed = parse_heads(heads)
        for head in parsed:
            if head in self._index:
                continue
            if head.kind not in self.kinds:
                raise HeadcountError(
                    f"there is no head {head}: this model has no {head.kind!r} attention; "
                    f"its kinds are {', '.join(self.kinds)}"
                )
            if head.site not in self._by_name:
                layers = [site.layer for site in self.sites if site.kind == head.kind]
                sharing = [site for site in self.sites if site.kind == head.kind and head.layer in site.also_layers]
                if sharing:
                    raise HeadcountError(
                        f"there is no head {head}: layer {head.layer} shares its attention with layer "
                        f"{sharing[0].layer}; name it {sharing[0].name}.{head.index}"
                    )
                raise HeadcountError(f"there is no head {head}: {head.kind} layers are {_ranges(layers)}")
            site = self._by_name[head.site]
            if head.index < site.original:
                raise HeadcountError(f"head {head} has already been removed; {site.name} has {_ranges(site.kept)} left")
            raise HeadcountError(f"there is no head {head}: {site.name} has heads {_ranges(site.kept)}")
        return parsed

    @cached_property
    def _index(self) -> dict[Head, int]:
        return {head: position for position, head in enumerate(self.heads)}

    def index(self, head: Head) -> int:
        """The position of a head in `heads`."""
        return self._index[head]

    def __repr__(self) -> str:
        return f"<{len(self.heads)} heads at {len(self.sites)} sites: {', '.join(self.kinds)}>"


def _ranges(numbers: Iterable[int]) -> str:
    """Write numbers shortly.

    >>> _ranges([0, 1, 2, 5])
    '0-2, 5'
    >>> _ranges([])
    'none'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs) or "none"
