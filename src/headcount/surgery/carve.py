"""Cut heads or neurons out of a site: the rows that make them, the columns that read them, all that counts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from headcount.structure import (
    UNGROUPED,
    AttentionSite,
    EmptiedConv1D,
    Layout,
    Site,
    is_transposed,
    pop_view,
    positions,
    push_view,
    put_mixin,
    set_layout,
)

COUNTS_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head")
COUNTS_NEURONS = ("all_head_size", "inner_dim", "split_size")
VIEW = "headcount_carved"


def carve(site: Site, kept: Sequence[int]) -> None:
    """Leave only the units `kept` (by original index, in order) at a site."""
    layout = site.layout.keeping(kept)
    rows = {part.path: site.rows(part, kept) for part, _ in site.inputs}
    for part, projection in site.inputs:
        _keep_outputs(projection, rows[part.path])
    places = positions(kept, site.kept)
    _keep_inputs(site.output, [place * site.width + i for place in places for i in range(site.width)])
    if isinstance(site, AttentionSite):
        _adapt(site, layout)
    elif not kept and is_transposed(site.output):  # a linear layer without inputs gives its bias by itself
        put_mixin(site.output, EmptiedConv1D, "")
    set_layout(site.module, layout)


def _adapt(site: AttentionSite, layout: Layout) -> None:
    """Let an attention module run with other heads than it was built with."""
    family = site.family
    _recount(site.module, layout, site.width)
    _change_view(site.module, layout, family.overrides)
    mixin = family.pruned if layout.kept else family.emptied
    if mixin is not None:
        put_mixin(site.module, mixin, family.output)


def _recount(module: Any, layout: Layout, width: int) -> None:
    """Correct the numbers that a module took from the configuration when it was built."""
    counts = dict.fromkeys(COUNTS_HEADS, len(layout.kept))
    counts |= dict.fromkeys(COUNTS_NEURONS, len(layout.kept) * width)
    counts["num_key_value_heads"] = len(layout.kv_kept)
    counts["num_key_value_groups"] = len(layout.kept) // len(layout.kv_kept) if layout.is_even else 1
    for name, count in counts.items():
        if hasattr(module, name):
            setattr(module, name, count)


def _change_view(module: Any, layout: Layout, overrides: Sequence[str]) -> None:
    """Let the module read its own number of heads; where groups are uneven, run our kernel first."""
    pop_view(module, VIEW)
    counts = dict.fromkeys(overrides, len(layout.kept))
    kernel = UNGROUPED if layout.group > 1 and layout.kept and not layout.is_even else None
    if counts or kernel:
        push_view(module, VIEW, kernel=kernel, **counts)


def _keep_outputs(projection: Any, rows: list[int]) -> None:
    transposed = is_transposed(projection)
    projection.weight = _selected(projection.weight, 1 if transposed else 0, rows)
    if projection.bias is not None:
        projection.bias = _selected(projection.bias, 0, rows)
    setattr(projection, "nf" if transposed else "out_features", len(rows))


def _keep_inputs(projection: Any, columns: list[int]) -> None:
    transposed = is_transposed(projection)
    projection.weight = _selected(projection.weight, 0 if transposed else 1, columns)
    setattr(projection, "nx" if transposed else "in_features", len(columns))


def _selected(parameter: nn.Parameter, axis: int, positions: list[int]) -> nn.Parameter:
    index = torch.tensor(positions, dtype=torch.long, device=parameter.device)
    return nn.Parameter(parameter.detach().index_select(axis, index).contiguous(), parameter.requires_grad)
