"""`anatomy`: where a model's attention heads are, as sites in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from headcount.errors import HeadcountError, UnsupportedModel, unknown
from headcount.heads import Head, parse_heads
from headcount.structure.families import FAMILIES
from headcount.structure.family import Family, Part, guess_family
from headcount.structure.layout import Layout, positions, recorded_sites
from headcount.structure.transformers_internals import is_transposed, layout_of, wrapper_of

KINDS = ("encoder", "text", "vision", "decoder", "cross")
_BY_CLASS = {name: family for family in FAMILIES for name in family.classes}


@dataclass(frozen=True, eq=False, kw_only=True)
class Site:
    """A place in a model where units of one width lie side by side: the input of its output projection.

    path, module: what computes the units. block: the Transformer layer around it. output: the projection. layout: which
    units are left. width: the size of one. also_layers: further layers that run this very module.
    """

    kind: str
    layer: int
    path: str
    module: nn.Module
    block: nn.Module
    output: Any
    layout: Layout
    width: int
    also_layers: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Kind and layer, for example `encoder.3`."""
        return f"{self.kind}.{self.layer}"

    @property
    def kept(self) -> tuple[int, ...]:
        """The units left, by original index, in the order of their weights."""
        return self.layout.kept

    @property
    def original(self) -> int:
        """How many units the site was trained with."""
        return self.layout.original

    @property
    def heads(self) -> tuple[Head, ...]:
        """The addresses of the units left, in the order of their weights."""
        return tuple(Head(self.kind, self.layer, index) for index in self.kept)

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self.kept)} heads of {self.width}, {self.path}>"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AttentionSite(Site):
    """One attention block; its units are heads, and several of them may share a key-value head."""

    family: Family

    @property
    def head_dim(self) -> int:
        """The size of a head."""
        return self.width

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

    def rows(self, part: Part, kept: Iterable[int]) -> list[int]:
        """The rows of a projection that the given heads, by original index, use."""
        wanted = self.layout.keeping(list(kept))
        rows: list[int] = []
        start = 0
        for stretch in part.stretches(self.module):
            here, chosen = (self.kv_kept, wanted.kv_kept) if stretch == "kv" else (self.kept, wanted.kept)
            size = self.width * (3 if stretch == "qkv" else 1)
            for position in positions(chosen, here):
                rows.extend(range(start + position * size, start + (position + 1) * size))
            start += size * len(here)
        return rows

    def parameters_of(self, kept: Iterable[int]) -> int:
        """How many parameters of the site belong to the given heads (its output bias belongs to none)."""
        kept = list(kept)
        total = self.output.weight.numel() // max(len(self.kept), 1) * len(kept)
        for part, module in self.inputs:
            per_row = module.weight.numel() // max(len(self.rows(part, self.kept)), 1)
            total += len(self.rows(part, kept)) * (per_row + (module.bias is not None))
        return total


@dataclass(frozen=True, eq=False)
class Anatomy:
    """All attention sites of a model: encoder before decoder before cross, and by layer."""

    sites: tuple[AttentionSite, ...]

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        """Every head that is left, in order."""
        return self.heads_of()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The attention kinds of the model, in order."""
        return tuple(dict.fromkeys(site.kind for site in self.sites))

    @cached_property
    def _by_name(self) -> dict[str, AttentionSite]:
        return {site.name: site for site in self.sites}

    @cached_property
    def _index(self) -> dict[Head, int]:
        return {head: position for position, head in enumerate(self.heads)}

    def index(self, head: Head) -> int:
        """The position of a head in `heads`."""
        return self._index[head]

    def site(self, name: str | Head) -> AttentionSite:
        """The site of a head, or of a name such as `encoder.3`."""
        key = name.site if isinstance(name, Head) else name
        if key not in self._by_name:
            raise HeadcountError(unknown("attention site", key, self._by_name))
        return self._by_name[key]

    def sites_of(
        self, kinds: Iterable[str] | None = None, layers: Iterable[int] | None = None
    ) -> tuple[AttentionSite, ...]:
        """The sites of these kinds and layers, all by default; a kind or layer that the model lacks is refused.

        >>> from transformers import BertConfig, BertModel
        >>> found = anatomy(BertModel(BertConfig(hidden_size=32, num_hidden_layers=3, num_attention_heads=4)))
        >>> [site.name for site in found.sites_of(["encoder"], layers=[0, 2])]
        ['encoder.0', 'encoder.2']
        >>> found.sites_of(["cross"])
        Traceback (most recent call last):
        headcount.errors.HeadcountError: unknown attention kind 'cross'. Available: encoder
        """
        wanted = set(self.kinds if kinds is None else kinds)
        for kind in sorted(wanted - set(self.kinds)):
            raise HeadcountError(unknown("attention kind", kind, self.kinds))
        sites = tuple(site for site in self.sites if site.kind in wanted)
        if layers is None:
            return sites
        numbers, there = set(layers), {site.layer for site in sites}
        for layer in sorted(numbers - there):
            raise HeadcountError(f"there is no layer {layer}", advice=f"choose {{layers}} from {_ranges(there)}")
        return tuple(site for site in sites if site.layer in numbers)

    def heads_of(self, kinds: Iterable[str] | None = None, layers: Iterable[int] | None = None) -> tuple[Head, ...]:
        """The heads left at the sites of these kinds and layers, in order."""
        return tuple(head for site in self.sites_of(kinds, layers) for head in site.heads)

    def check(self, heads: Iterable[Head | str] | str) -> tuple[Head, ...]:
        """Read heads and make sure that each exists in this model, once."""
        parsed = parse_heads(heads)
        for head in parsed:
            if head not in self._index:
                raise HeadcountError(self._why_not(head))
        return parsed

    def _why_not(self, head: Head) -> str:
        """Why a head does not exist in this model."""
        if head.kind not in self.kinds:
            kinds = ", ".join(self.kinds)
            return f"there is no head {head}: this model has no {head.kind!r} attention; its kinds are {kinds}"
        site = self._by_name.get(head.site)
        if site is not None and head.index < site.original:
            return f"head {head} has already been removed; {site.name} has {_ranges(site.kept)} left"
        if site is not None:
            return f"there is no head {head}: {site.name} has heads {_ranges(site.kept)}"
        alike = [site for site in self.sites if site.kind == head.kind]
        for first in alike:
            if head.layer in first.also_layers:
                return (
                    f"there is no head {head}: layer {head.layer} shares its attention with layer {first.layer}; "
                    f"name it {first.name}.{head.index}"
                )
        return f"there is no head {head}: {head.kind} layers are {_ranges(site.layer for site in alike)}"

    def __repr__(self) -> str:
        return f"<{len(self.heads)} heads at {len(self.sites)} sites: {', '.join(self.kinds)}>"


def _ranges(numbers: Iterable[int]) -> str:
    """Write numbers in short.

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


def anatomy(model: nn.Module) -> Anatomy:
    """Find where a model's attention heads are.

    >>> from transformers import BertConfig, BertModel
    >>> found = anatomy(BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4)))
    >>> found
    <8 heads at 2 sites: encoder>
    >>> found.heads[5]
    Head.parse('encoder.1.1')

    Raises `UnsupportedModel` for a model whose heads it cannot find.
    """
    if not isinstance(model, nn.Module):
        raise HeadcountError(
            f"expected a model (torch.nn.Module), got a {type(model).__name__}", advice="load it first"
        )
    modules = dict(model.named_modules())
    _refuse_wrapped(modules)
    sites: list[AttentionSite] = []
    layers: dict[str, int] = {}  # of each kind, how many so far
    for path, module in modules.items():
        family = family_of(module)
        if family is None or family.output_path(path) not in modules:
            continue
        reason = family.refuse(module)
        if reason:
            raise UnsupportedModel(reason)
        kind = family.kind_of(module, path)
        run_by = [layers.get(kind, 0)] if family.layers is None else family.layers(modules, path)
        layers[kind] = run_by[0] + 1
        sites.append(_site(model, modules, path, family, kind, run_by))
    _refuse_unknown(model, modules, sites)
    order = {kind: position for position, kind in enumerate(KINDS)}
    return Anatomy(tuple(sorted(sites, key=lambda site: (order.get(site.kind, len(order)), site.kind, site.layer))))


def family_of(module: nn.Module) -> Family | None:
    """The family of an attention module, declared or guessed; None for any other module."""
    for cls in type(module).__mro__:  # pruned attention is a subclass of its family's class
        family = _BY_CLASS.get(cls.__name__) if cls.__module__.startswith("transformers.") else None
        if family is not None and all(part.optional or hasattr(module, part.path) for part in family.inputs):
            return family  # DeBERTa's first version has a class of the same name, and other projections
    return guess_family(module)


def _site(
    model: Any, modules: Mapping[str, nn.Module], path: str, family: Family, kind: str, run_by: list[int]
) -> AttentionSite:
    module, output = modules[path], modules[family.output_path(path)]
    width = int(getattr(module, family.head_dim))
    weight: Any = output.weight
    inputs = getattr(output, "in_features", None)  # a quantized weight has another shape
    count = (weight.shape[0 if is_transposed(output) else 1] if inputs is None else inputs) // width
    return AttentionSite(
        kind=kind,
        layer=run_by[0],
        path=path,
        module=module,
        block=_block(modules, path, family.depth),
        output=output,
        layout=layout_of(module) or _first_layout(model, module, kind, run_by[0], count),
        width=width,
        also_layers=tuple(run_by[1:]),
        family=family,
    )


def _first_layout(model: Any, module: Any, kind: str, layer: int, count: int) -> Layout:
    """The layout of a module that we have not touched: whole, or as a stock checkpoint of ours names its heads."""
    entry = recorded_sites(getattr(model, "config", None)).get(f"{kind}.{layer}")
    if entry is not None and len(entry.get("built", ())) == count:
        layout = Layout.read(kind, entry)
        return layout.keeping(layout.built)
    return Layout.whole(kind, count, max(1, getattr(module, "num_key_value_groups", 1)))


def _block(modules: Mapping[str, nn.Module], path: str, depth: int) -> nn.Module:
    """The Transformer layer around a site: the `depth`-th element of a module list on the way up."""
    block = modules[path]
    while path:
        parent = path.rpartition(".")[0]
        if isinstance(modules.get(parent), nn.ModuleList):
            block, depth = modules[path], depth - 1
            if depth == 0:
                break
        path = parent
    return block


def _refuse_wrapped(modules: Mapping[str, nn.Module]) -> None:
    for path, module in modules.items():
        wrapper = wrapper_of(module)
        if wrapper is not None:
            what, advice = wrapper
            raise UnsupportedModel(f"the model {f'(at {path}) ' if path else ''}{what}", advice=advice)


def _refuse_unknown(model: nn.Module, modules: Mapping[str, nn.Module], sites: list[AttentionSite]) -> None:
    """Attention that no family knows would be left out silently: refuse it by name."""
    known = [site.path for site in sites]
    strange = {
        type(module).__name__: [name for name, child in module.named_children() if hasattr(child, "weight")]
        for path, module in modules.items()
        if "attention" in type(module).__name__.lower()
        and any(hasattr(child, "weight") for child in module.children())
        and not any(f"{path}.".startswith(f"{site}.") or f"{site}.".startswith(f"{path}.") for site in known)
    }
    if sites and not strange:
        return
    seen = "; ".join(f"{name} with {', '.join(children)}" for name, children in list(strange.items())[:3])
    families = ", ".join(family.name for family in FAMILIES)
    raise UnsupportedModel(
        f"headcount does not know the attention of {type(model).__name__}: it saw {seen or 'no attention module'}. "
        f"Supported: {families} and models with the usual projection names",
        advice="CONTRIBUTING.md shows how to add a family in 20 lines",
    )
