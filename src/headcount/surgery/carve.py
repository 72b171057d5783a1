"""Cut heads or neurons out of sites, and keep the record in `config.json` of which units each site has left.

A record is written, checked, and applied to a model that is to be loaded. The fields of an entry, and their version,
are those of `Layout` (structure/layout.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headcount.errors import BadCheckpoint
from headcount.heads import FEED_FORWARD
from headcount.model_directory import CONFIG
from headcount.structure import (
    UNGROUPED,
    VERSION,
    AttentionSite,
    EmptiedConv1D,
    Layout,
    Site,
    anatomy,
    is_transposed,
    makes_sense,
    pop_view,
    positions,
    push_view,
    put_mixin,
    recorded_sites,
    set_layout,
    whole_anatomy,
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


def write_record(model: Any) -> None:
    """Write into the configuration which units each site has left, so that every saved copy says so."""
    sites = sites_to_record(model)
    if sites and hasattr(model, "config"):
        model.config.headcount = {"version": VERSION, "sites": {site.name: site.layout.entry() for site in sites}}


def sites_to_record(model: Any) -> list[Site]:
    """All attention sites, and all feed-forward sites if one has lost neurons; none of a model that is whole."""
    sites = whole_anatomy(model).sites
    lost = {site.unit for site in sites if len(site.kept) < site.original}
    return [site for site in sites if lost and (site.unit == "head" or site.unit in lost)]


def check_record(record: Any, path: Path) -> None:
    """Make sure that a record from a file is one, and consistent."""
    if record is None:
        return
    sites = record.get("sites") if isinstance(record, dict) else None
    if not isinstance(sites, dict) or not sites:
        raise BadCheckpoint(
            f"{path}: 'headcount' does not record heads", advice="save the model again with headcount.save"
        )
    if record.get("version") != VERSION:
        raise BadCheckpoint(
            f"{path}: heads are recorded in version {record.get('version')!r}, and this headcount reads {VERSION}"
        )
    for name, entry in sites.items():
        if not makes_sense(name, entry):
            raise BadCheckpoint(f"{path}: the units recorded for {name} make no sense: {str(entry)[:80]}")


def apply_record(model: Any) -> None:
    """Carve a freshly built model down to the units that its configuration records."""
    recorded = recorded_sites(model.config)
    find = whole_anatomy if any(FEED_FORWARD in name for name in recorded) else anatomy
    sites = {site.name: site for site in find(model).sites} if recorded else {}
    strange = sorted(set(sites) ^ set(recorded))
    if strange:
        unit = "neurons" if FEED_FORWARD in strange[0] else "heads"
        what = f"records {unit} of" if strange[0] in recorded else f"does not say which {unit} are left at"
        raise BadCheckpoint(f"{CONFIG} {what} {strange[0]}; the model has {', '.join(sites)}")
    for name, site in sites.items():
        layout = Layout.read(site.kind, recorded[name])
        if site.layout != layout.keeping(layout.built):  # `anatomy` names the heads by the record, if it fits them
            raise BadCheckpoint(
                f"{CONFIG} records {len(layout.kept)} {site.unit}s of {layout.original} for {name}, "
                f"which do not fit the {len(site.kept)} {site.unit}s of the model it describes"
            )
        if len(layout.kept) < len(site.kept):
            carve(site, layout.kept)
        else:
            set_layout(site.module, layout)
