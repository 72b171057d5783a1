"""The directory of a demo: new, empty, or the same demo to go on with; anything else is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headcount.engine.rundir import read_object, write_whole
from headcount.errors import RunConflict

DEMO = "demo.json"


def claim(out: Path, settings: dict[str, Any]) -> bool:
    """Take the directory for a demo with these settings; True if it was begun before."""
    taken = next((place for place in (out, *out.parents) if place.exists() and not place.is_dir()), None)
    if taken is not None:
        raise RunConflict(f"{taken} is a file; choose another --out")
    if out.as_posix().startswith("-"):
        raise RunConflict(f"commands would take {out} for an option; choose an --out that does not begin with -")
    known = read_object(out / DEMO)
    strangers = sorted(entry.name for entry in out.iterdir()) if known is None and out.is_dir() else []
    if strangers:
        raise RunConflict(f"{out} holds {strangers[0]!r} and is no demo; choose another --out")
    if known is not None and known != settings:
        raise RunConflict(f"{out} is a demo of another kind or size; choose another --out, or remove it")
    if known is None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunConflict(f"cannot make {out}: {error.strerror}; choose another --out") from error
        write_whole(out / DEMO, json.dumps(settings, indent=2).encode())
    return known is not None
