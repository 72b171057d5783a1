"""`anatomy`: find where a model's heads and neurons are, and name them, as sites in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from headcount.errors import HeadcountError, UnsupportedModel, counted, unknown
from headcount.heads import (
    FEED_FORWARD,
    Head,
    Span,
    asked_units,
    format_ranges,
    format_units,
    parse_units,
    refuse_repeated,
)
from headcount.structure.families import FAMILIES, Family, features, guess_family, inside
from headcount.structure.layout import MOST, Layout, makes_sense, recorded_sites
from headcount.structure.site import AttentionSite, FeedForwardSite
from headcount.structure.transformers_internals import layout_of, wrapper_of

KINDS = ("encoder", "text", "vision", "decoder", "cross")
_BY_CLASS = {name: family for family in FAMILIES for name in family.classes}
# What the feed-forward layer of an undeclared family is recognised by: the names that others use.
_USUAL = tuple(dict.fromkeys(family.feed_forward for family in FAMILIES if family.feed_forward is not None))


def anatomy(model: nn.Module, units: str | Iterable[str] = "heads") -> Anatomy:
    """Find where a model's attention heads are, or its neurons, or both.

    >>> from transformers import BertConfig, BertModel
    >>> size = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    >>> model = BertModel(BertConfig(**size))
    >>> found = anatomy(model)
    >>> found
    <8 heads at 2 sites: encoder>
    >>> found.heads[5]
    Head.parse('encoder.1.1')
    >>> anatomy(model, "neurons").units[64]
    Head.parse('encoder_ffn.1.0')
    >>> anatomy(model, "sublayers").units
    ('encoder.0', 'encoder.1', 'encoder_ffn.0', 'encoder_ffn.1')

    units: "heads" (of attention sites), "neurons" (of feed-forward sites), "sublayers" (whole sites of both), or
        several of them. Attention sites come first, then feed-forward sites.

    Raises `UnsupportedModel` for a model whose heads, or the units asked for, it cannot find.
    """
    asked = asked_units(units)
    modules, attention = _attention(model)
    if asked == ("heads",):
        return Anatomy(tuple(attention))
    layers, reason = _feed_forward(model, modules, attention)
    if reason:
        add = "CONTRIBUTING.md shows how to add a family in 20 lines"
        raise UnsupportedModel(reason, advice=f"choose {{units}} heads; {add}" if attention else add)
    return Anatomy((*([] if asked == ("neurons",) else attention), *layers), asked)


def whole_anatomy(model: nn.Module) -> Anatomy:
    """Every head, and every neuron of a model whose feed-forward layers are known: whatever can be named."""
    modules, attention = _attention(model)
    layers, reason = _feed_forward(model, modules, attention)
    return Anatomy((*attention, *layers), ("heads", "neurons"), reason)


@dataclass(frozen=True, eq=False)
class Anatomy:
    """Sites of a model: encoder before decoder before cross, and by layer; feed-forward sites after attention sites.

    asked: the units that are counted. unknown: why the model's neurons are not among them, if they cannot be found.
    """

    sites: tuple[Any, ...]  # AttentionSite, FeedForwardSite
    asked: tuple[str, ...] = ("heads",)
    unknown: str = ""

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        """Every head or neuron that is left at these sites, in order."""
        return self.heads_of()

    @cached_property
    def units(self) -> tuple[Head | str, ...]:
        """The units asked for, in order: heads, neurons, and whole sublayers by the names of their sites."""
        found: list[Head | str] = []
        for what, neurons in (("heads", False), ("neurons", True)):
            if what in self.asked:
                found += [h for site in self.sites if isinstance(site, FeedForwardSite) == neurons for h in site.heads]
        if "sublayers" in self.asked:
            found += [site.name for site in self.sites if site.kept]
        return tuple(found)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the sites, in order."""
        return tuple(dict.fromkeys(site.kind for site in self.sites))

    @cached_property
    def _by_name(self) -> dict[str, Any]:
        return {site.name: site for site in self.sites}

    @cached_property
    def _index(self) -> dict[Head | str, int]:
        return {unit: position for position, unit in enumerate(self.units)}

    def index(self, unit: Head | str) -> int:
        """The position of a unit in `units`."""
        return self._index[unit]

    def site(self, name: str | Head) -> Any:
        """The site of a head, or of a name such as `encoder.3`."""
        key = name.site if isinstance(name, Head) else name
        if key not in self._by_name:
            raise HeadcountError(unknown("site", key, self._by_name))
        return self._by_name[key]

    def sites_of(self, kinds: Iterable[str] | None = None, layers: Iterable[int] | None = None) -> tuple[Any, ...]:
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
            what = "kind" if len(self.asked) > 1 or "heads" not in self.asked else "attention kind"
            if self.asked in (("neurons",), ("heads",)) and kind.endswith(FEED_FORWARD) == (self.asked == ("heads",)):
                raise HeadcountError(
                    f"sites of kind {kind} have no {self.asked[0]}",
                    advice=f"choose {{kinds}} from {', '.join(self.kinds)}, or other {{units}}",
                )
            raise HeadcountError(unknown(what, kind, self.kinds))
        sites = tuple(site for site in self.sites if site.kind in wanted)
        if layers is None:
            return sites
        numbers, there = set(layers), {site.layer for site in sites}
        for layer in sorted(numbers - there):
            raise HeadcountError(f"there is no layer {layer}", advice=f"choose {{layers}} from {format_ranges(there)}")
        return tuple(site for site in sites if site.layer in numbers)

    def heads_of(self, kinds: Iterable[str] | None = None, layers: Iterable[int] | None = None) -> tuple[Head, ...]:
        """The heads left at the sites of these kinds and layers, in order."""
        return tuple(head for site in self.sites_of(kinds, layers) for head in site.heads)

    def check(self, units: Iterable[Head | str] | Head | str) -> tuple[Head, ...]:
        """Read units, write out ranges and whole sublayers, and make sure that each exists in this model, once.

        >>> from transformers import BertConfig, BertModel
        >>> size = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
        >>> found = anatomy(BertModel(BertConfig(**size)), ["heads", "neurons"])
        >>> len(found.check("encoder.0.1, encoder.1, encoder_ffn.0.0-9"))
        15
        """
        heads = [head for unit in parse_units(units) for head in self.expand(unit)]
        refuse_repeated(heads)
        return tuple(heads)

    def expand(self, unit: Head | Span | str) -> tuple[Head, ...]:
        """The heads or neurons that one head, range or sublayer stands for; all of them must exist."""
        unit = parse_units([unit])[0] if isinstance(unit, str) else unit
        site = self._by_name.get(unit.site)
        if site is None:
            raise HeadcountError(self._why_not(unit))
        if isinstance(unit, Head):
            if unit.index not in site.places:
                raise HeadcountError(self._why_not(unit))
            return (unit,)
        if unit.first is None:
            if not site.kept:
                raise HeadcountError(f"{site.name} has no {site.unit}s left: all have already been removed")
            return site.heads
        assert unit.last is not None
        if unit.last >= site.original:
            raise HeadcountError(self._why_not(unit))
        heads = tuple(Head(unit.kind, unit.layer, index) for index in range(unit.first, unit.last + 1))
        for head in heads:
            if head.index not in site.places:
                raise HeadcountError(self._why_not(head))
        return heads

    def written(self, heads: Iterable[Head]) -> list[str]:
        """Heads one by one, as results list them, and neurons, of which there may be thousands, in ranges."""
        heads = list(heads)
        sizes = {site.name: len(site.kept) for site in self.sites}
        neurons = format_units([head for head in heads if head.is_neuron], sizes)
        return [*(str(head) for head in heads if not head.is_neuron), *neurons]

    def _why_not(self, unit: Head | Span) -> str:
        """Why a head, a range or a site does not exist in this model."""
        what = "neuron" if unit.is_neuron else "head"
        what = f"range of {what}s" if isinstance(unit, Span) else what
        what = "sublayer" if isinstance(unit, Span) and unit.first is None else what
        if unit.kind not in self.kinds:
            if unit.is_neuron and (self.unknown or self.asked == ("heads",)):
                return self.unknown or f"there is no head {unit}: it names a neuron, and only heads are taken here"
            kinds = ", ".join(self.kinds)
            where = "feed-forward layers" if unit.is_neuron else "attention"
            return f"there is no {what} {unit}: this model has no {unit.kind!r} {where}; its kinds are {kinds}"
        site = self._by_name.get(unit.site)
        if site is not None and isinstance(unit, Head) and unit.index < site.original:
            left = format_ranges(site.kept) or "none"
            return f"{what} {unit} has already been removed; {site.name} has {left} left"
        if site is not None:
            left = format_ranges(site.kept) or "none"
            return f"there is no {what} {unit}: {site.name} has {site.unit}s {left}"
        alike = [site for site in self.sites if site.kind == unit.kind]
        for first in alike:
            if unit.layer in first.also_layers:
                own = str(unit).removeprefix(unit.site)
                return (
                    f"there is no {what} {unit}: layer {unit.layer} shares its module with layer {first.layer}; "
                    f"name it {first.name}{own}"
                )
        layers = format_ranges(site.layer for site in alike)
        return f"there is no {what} {unit}: {unit.kind} layers are {layers}"

    def __repr__(self) -> str:
        names = [name for name in self.asked if name != "sublayers"]
        units = [name.removesuffix("s") for name in names]
        counts = [counted(sum(len(site.kept) for site in self.sites if site.unit == unit), unit) for unit in units]
        what = f"{' and '.join(counts)} at " if counts else ""
        unit = "sublayer" if "sublayers" in self.asked else "site"
        return f"<{what}{counted(len(self.sites), unit)}: {', '.join(self.kinds)}>"


def _attention(model: nn.Module) -> tuple[dict[str, nn.Module], list[AttentionSite]]:
    """A model's modules by path, and its attention sites in order."""
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
    sites.sort(key=lambda site: (order.get(site.kind, len(order)), site.kind, site.layer))
    return modules, sites


def _feed_forward(
    model: nn.Module, modules: Mapping[str, nn.Module], attention: list[AttentionSite]
) -> tuple[list[FeedForwardSite], str]:
    """The feed-forward sites beside self-attention, in its order; none, and why, if a layer's is not known."""
    sites: list[FeedForwardSite] = []
    paths = {module: path for path, module in modules.items()}
    seen: set[nn.Module] = set()
    for site in attention:
        if site.kind == "cross":
            continue
        for declared in _USUAL if site.family.structural else filter(None, [site.family.feed_forward]):
            path, output = inside(site.block, declared.output)
            count = declared.count(site.block)
            if count is not None:
                break
        else:
            block = type(site.block).__name__
            children = ", ".join(name for name, _ in site.block.named_children()) or "nothing"
            return [], f"headcount does not know the feed-forward layer of {site.name}: it saw {block} with {children}"
        if count > MOST:
            return [], f"the feed-forward layer of {site.name} has {count:,} neurons; at most {MOST:,} can be handled"
        if output in seen:  # two attention modules in one layer
            continue
        seen.add(output)
        kind = f"{site.kind}{FEED_FORWARD}"
        sites.append(
            FeedForwardSite(
                kind=kind,
                layer=site.layer,
                path=f"{paths[site.block]}.{path}".lstrip("."),
                module=output,
                block=site.block,
                output=output,
                layout=layout_of(output) or _first_layout(model, output, kind, site.layer, count),
                width=1,
                family=site.family,
                also_layers=site.also_layers,
                feed_forward=declared,
            )
        )
    return sites, ""


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
    count = features(output, "in_features", 0) // width
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
    name = f"{kind}.{layer}"
    entry = recorded_sites(getattr(model, "config", None)).get(name)
    if entry is not None and "built" in entry and makes_sense(name, entry):
        layout = Layout.read(kind, entry)
        if len(layout.built) == count:
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
