"""Which heads a model has left, as `config.json` says it: written by `remove` and `save`, read by `load`.

Per site: `kept`, the heads left by their original index; `of`, how many there were; `group`, how many query heads
shared one key-value head; and, where it is not all of them, `built`: the heads that a model has that is built from
the numbers in this very configuration (those of a stock checkpoint).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from headcount.errors import BadCheckpoint
from headcount.structure import AttentionSite, anatomy
from headcount.surgery.carve import carve, name_heads

VERSION = 1
MOST = 100_000  # no honest layer has more heads


def write_record(model: Any) -> None:
    """Write into the configuration which heads each site has left, so that every saved copy says so."""
    sites = anatomy(model).sites
    if any(len(site.kept) < site.original for site in sites) and hasattr(model, "config"):
        model.config.headcount = {"version": VERSION, "sites": {site.name: entry(site, site.built) for site in sites}}


def entry(site: AttentionSite, built: tuple[int, ...]) -> dict[str, Any]:
    """What the record says of one site."""
    facts: dict[str, Any] = {"kept": list(site.kept), "of": site.original, "group": site.group}
    return facts if len(built) == site.original else {**facts, "built": list(built)}


def check_record(record: Any, path: Path) -> None:
    """Make sure that a record from a file makes sense in itself."""
    if record is None:
        return
    sites = record.get("sites") if isinstance(record, dict) else None
    if not isinstance(sites, dict) or not sites:
        raise BadCheckpoint(f"{path}: 'headcount' does not record heads; save the model again with headcount.save")
    if record.get("version") != VERSION:
        raise BadCheckpoint(
            f"{path}: heads are recorded in version {record.get('version')!r}, and this headcount reads {VERSION}"
        )
    for name, facts in sites.items():
        if not _makes_sense(name, facts):
            raise BadCheckpoint(f"{path}: the heads recorded for {name} make no sense: {str(facts)[:80]}")


def _makes_sense(name: str, facts: Any) -> bool:
    if not isinstance(facts, dict) or not re.fullmatch(r"[a-z_]+\.\d{1,6}", name):
        return False
    original, group, kept = facts.get("of"), facts.get("group"), facts.get("kept")
    if type(original) is not int or type(group) is not int or not 1 <= group <= original <= MOST or original % group:
        return False
    built = facts.get("built", list(range(original)))
    for heads in (kept, built):
        if not isinstance(heads, list) or any(type(index) is not int for index in heads):
            return False
        if heads != sorted(set(heads)) or not all(index in range(original) for index in heads):
            return False
    return bool(built) and set(kept or ()) <= set(built)


def apply_record(model: Any) -> None:
    """Carve a freshly built model down to the heads that its configuration records."""
    recorded = (getattr(model.config, "headcount", None) or {}).get("sites", {})
    sites = {site.name: site for site in anatomy(model).sites} if recorded else {}
    strange = sorted(set(sites) ^ set(recorded))
    if strange:
        what = "records heads of" if strange[0] in recorded else "does not say which heads are left at"
        raise BadCheckpoint(f"config.json {what} {strange[0]}; the model has {', '.join(sites)}")
    for name, site in sites.items():
        facts = recorded[name]
        # `anatomy` has named the heads by the record, if it fits the weights
        built = tuple(facts.get("built", range(facts["of"])))
        if (site.original, site.group, site.kept) != (facts["of"], facts["group"], built):
            raise BadCheckpoint(
                f"config.json records {len(facts['kept'])} heads of {facts['of']} for {name}, "
                f"which do not fit the {len(site.kept)} heads of the model it describes"
            )
        if len(facts["kept"]) < len(site.kept):
            carve(site, facts["kept"])
        else:
            name_heads(site, facts["kept"])
