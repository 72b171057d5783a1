"""`anatomy(model)`: find every attention site of a model by the names of its attention classes."""

from __future__ import annotations

from typing import Any

from torch import nn

from headcount.anatomy.families import FAMILIES
from headcount.anatomy.family import Family
from headcount.anatomy.sites import Anatomy, AttentionSite
from headcount.anatomy.structural import guess_family
from headcount.errors import HeadcountError, UnsupportedModel

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
