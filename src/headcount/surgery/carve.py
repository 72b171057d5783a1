"""Cut heads out of one attention site: its weights, and everything that counts heads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from headcount.structure import UNGROUPED, AttentionSite, ConfigView

COUNTS_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head")
COUNTS_NEURONS = ("all_head_size", "inner_dim", "split_size")


def carve(site: AttentionSite, kept: Sequence[int]) -> None:
    """Leave only the heads `kept` (by original index, in order) at a site."""
    module: Any = site.module
    rows = {part.path: site.rows(part, kept) for part, _ in site.inputs}
    for part, projection in site.inputs:
        _slice_outputs(projection, rows[part.path])
    positions = [site.kept.index(index) for index in kept]
    _slice_inputs(site.output, [p * site.head_dim + i for p in positions for i in range(site.head_dim)])
    name_heads(site, kept)
    for name in COUNTS_HEADS:
        if hasattr(module, name):
            setattr(module, name, len(kept))
    for name in COUNTS_NEURONS:
        if hasattr(module, name):
            setattr(module, name, len(kept) * site.head_dim)
    _share_keys(module, kept, site.group, {name: len(kept) for name in site.family.overrides})
    mixin = site.family.pruned if kept else site.family.emptied
    if mixin is not None:
        output = site.output
        module.__class__ = _with_mixin(mixin, _stock_class(type(module)))
        if not kept:
            module.__dict__["headcount_output"] = _Reference(output)


def name_heads(site: AttentionSite, kept: Sequence[int]) -> None:
    """Write the heads' original names on the module, where `anatomy` reads them."""
    module: Any = site.module
    module.headcount_kept = tuple(kept)
    module.headcount_original = site.original
    module.headcount_group = site.group
    module.headcount_built = site.built
    module.headcount_kind = site.kind


class _Reference:
    """Points at a module without making it a child; a copy of the model points at the copy."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self) -> nn.Module:
        return self.module


def _share_keys(module: Any, kept: Sequence[int], group: int, overrides: dict[str, Any]) -> None:
    """Tell the module which query heads share a key-value head; where groups are uneven, use our own kernel."""
    keys = sorted({index // group for index in kept})
    index = tuple(keys.index(head // group) for head in kept)
    even = (
        len(keys)
        and len(kept) % len(keys) == 0
        and index == tuple(position // (len(kept) // len(keys)) for position in range(len(kept)))
    )
    if hasattr(module, "num_key_value_heads"):
        module.num_key_value_heads = len(keys)
    if hasattr(module, "num_key_value_groups"):
        module.num_key_value_groups = len(kept) // len(keys) if even else 1
    config = getattr(module, "config", None)
    config = config._base if isinstance(config, ConfigView) else config
    if group > 1 and kept and not even:
        module.headcount_kv_index = index
        overrides["_attn_implementation"] = UNGROUPED
    if overrides:
        config = ConfigView(config, **overrides)
    if config is not None:
        module.config = config


def _slice_outputs(projection: Any, rows: list[int]) -> None:
    axis = 1 if isinstance(projection, Conv1D) else 0
    projection.weight = _selected(projection.weight, axis, rows)
    if projection.bias is not None:
        projection.bias = _selected(projection.bias, 0, rows)
    setattr(projection, "nf" if isinstance(projection, Conv1D) else "out_features", len(rows))


def _slice_inputs(projection: Any, columns: list[int]) -> None:
    axis = 0 if isinstance(projection, Conv1D) else 1
    projection.weight = _selected(projection.weight, axis, columns)
    setattr(projection, "nx" if isinstance(projection, Conv1D) else "in_features", len(columns))


def _selected(parameter: nn.Parameter, axis: int, positions: list[int]) -> nn.Parameter:
    index = torch.tensor(positions, dtype=torch.long, device=parameter.device)
    return nn.Parameter(parameter.detach().index_select(axis, index).contiguous(), parameter.requires_grad)


def _stock_class(cls: type) -> type:
    """The transformers class behind one of ours."""
    return next(base for base in cls.__mro__ if "_headcount_mixin" not in base.__dict__ and issubclass(base, nn.Module))


@cache
def _with_mixin(mixin: type, cls: type) -> type:
    return type(cls.__name__, (mixin, cls), {"_headcount_mixin": mixin, "__module__": cls.__module__})
