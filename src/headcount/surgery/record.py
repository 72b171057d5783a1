"""The record in `config.json` of which units each site has left: written, checked, and applied to a model being loaded.

The fields of an entry, and their version, are those of `Layout` (structure/layout.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headcount.errors import BadCheckpoint
from headcount.heads import FEED_FORWARD
from headcount.model_directory import CONFIG
from headcount.structure import VERSION, Layout, Site, anatomy, makes_sense, recorded_sites, set_layout, whole_anatomy
from headcount.surgery.carve import carve


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
