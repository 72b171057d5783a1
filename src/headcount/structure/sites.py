"""`AttentionSite`, one attention block of a model, and `Anatomy`, all of them in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from headcount.errors import HeadcountError, UnsupportedModel, unknown
from headcount.heads import Head, parse_heads
from headcount.structure.families import FAMILIES
from headcount.structure.family import Family, Part, guess_family

KINDS = ("encoder", "text", "vision", "decoder", "cross")
CROSS_NAMES = ("encoder_attn", "crossattention", "cross_attn", "EncDecAttention")
WRAPPERS = {
    "OptimizedModule": "is compiled (torch.compile); pass the model as it was before, and compile afterwards",
    "DistributedDataParallel": "is wrapped for distributed training; pass model.module",
    "DataParallel": "is wrapped for several devices; pass model.module",
    "FullyShardedDataParallel": "is sharded by FSDP; pass the model before it is wrapped",
    "FSDP": "is sharded by FSDP; pass the model before it is wrapped",
}
_BY_CLASS = {name: family for family in FAMILIES for name in family.classes}


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
        raise HeadcountError(f"expected a model (torch.nn.Module), got {type(model).__name__}; load it first")
    modules = dict(model.named_modules())
    _refuse_wrapped(modules)
    sites: list[AttentionSite] = []
    layers: dict[str, int] = {}
    for path, module in modules.items():
        family = _family_of(module)
        if family is None or output_path(family, path) not in modules:
            continue
        reason = family.refuse(module)
        if reason:
            raise UnsupportedModel(reason)
        kind = _kind(family, module, path)
        layer, *also = _shared_layers(path, modules) or [layers.get(kind, 0)]
        layers[kind] = layer + 1
        sites.append(_site(model, modules, path, family, kind, layer, tuple(also)))
    _refuse_unknown(model, modules, sites)
    order = {kind: position for position, kind in enumerate(KINDS)}
    return Anatomy(tuple(sorted(sites, key=lambda site: (order.get(site.kind, len(order)), site.kind, site.layer))))


def _refuse_wrapped(modules: dict[str, nn.Module]) -> None:
    """Refuse what would run other code than the modules we see: compiled code ignores hooks, silently."""
    for path, module in modules.items():
        name = "OptimizedModule" if module._compiled_call_impl is not None else type(module).__name__
        if name in WRAPPERS:
            raise UnsupportedModel(f"the model {f'(at {path}) ' if path else ''}{WRAPPERS[name]}")


def _family_of(module: nn.Module) -> Family | None:
    for cls in type(module).__mro__:  # pruned attention is a subclass of its family's class
        family = _BY_CLASS.get(cls.__name__) if cls.__module__.startswith("transformers.") else None
        if family is not None and all(part.optional or hasattr(module, part.path) for part in family.inputs):
            return family  # DeBERTa's first version has a class of the same name, and other projections
    return guess_family(module)


def _kind(family: Family, module: Any, path: str) -> str:
    if isinstance(family.kind, str):
        return family.kind
    if family.kind is not None:
        return family.kind(module)
    if any(name in path for name in CROSS_NAMES) or getattr(module, "is_cross_attention", False):
        return "cross"
    causal = getattr(module, "is_causal", None)
    return "decoder" if (getattr(module, "is_decoder", False) if causal is None else causal) else "encoder"


def _shared_layers(path: str, modules: dict[str, nn.Module]) -> list[int] | None:
    """The layers that run one of ALBERT's shared modules; none for models that do not share."""
    prefix, separator, rest = path.partition("albert_layer_groups.")
    if not separator:
        return None
    group, inner = int(rest.split(".")[0]), int(rest.split(".")[2])
    config: Any = modules[prefix.rstrip(".")].config
    per_group = config.num_hidden_layers / config.num_hidden_groups
    outer = [layer for layer in range(config.num_hidden_layers) if int(layer / per_group) == group]
    return [layer * config.inner_group_num + inner for layer in outer]


def _site(
    model: Any,
    modules: dict[str, nn.Module],
    path: str,
    family: Family,
    kind: str,
    layer: int,
    also: tuple[int, ...],
) -> AttentionSite:
    module: Any = modules[path]
    output: Any = modules[output_path(family, path)]
    head_dim = int(getattr(module, family.head_dim))
    width = output.in_features if hasattr(output, "in_features") else output.weight.shape[0]
    kept, original, group, built = _names(model, module, f"{kind}.{layer}", width // head_dim)
    return AttentionSite(
        kind=kind,
        layer=layer,
        path=path,
        module=module,
        block=_block(modules, path, family.depth),
        output=output,
        family=family,
        head_dim=head_dim,
        kept=kept,
        original=original,
        group=group,
        built=built,
        also_layers=also,
    )


def _names(model: Any, module: Any, site: str, count: int) -> tuple[tuple[int, ...], int, int, tuple[int, ...]]:
    """The original indices of the `count` heads at a site, how many there were, their groups, and those built."""
    if hasattr(module, "headcount_kept"):  # heads have been removed
        return module.headcount_kept, module.headcount_original, module.headcount_group, module.headcount_built
    record = (getattr(getattr(model, "config", None), "headcount", None) or {}).get("sites", {}).get(site)
    built = tuple(range(count))
    if record is not None and len(record.get("built", ())) == count:  # a stock checkpoint of ours
        return tuple(record["built"]), record["of"], record["group"], tuple(record["built"])
    return built, count, max(1, getattr(module, "num_key_value_groups", 1)), built


def output_path(family: Family, path: str) -> str:
    """The path of a site's output projection."""
    if family.output.startswith("^."):
        return f"{path.rpartition('.')[0]}{family.output[1:]}".lstrip(".")
    return f"{path}.{family.output}".lstrip(".")


def _block(modules: dict[str, nn.Module], path: str, depth: int) -> nn.Module:
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


def _refuse_unknown(model: nn.Module, modules: dict[str, nn.Module], sites: list[AttentionSite]) -> None:
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
        f"headcount does not know the attention of {type(model).__name__}: "
        f"it saw {seen or 'no attention module'}. Supported: {families} and models with the usual projection names. "
        "CONTRIBUTING.md shows how to add a family in 20 lines."
    )
