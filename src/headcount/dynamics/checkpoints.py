"""Which directories are the checkpoints of one training run, and in which order."""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from headcount.anatomy import anatomy
from headcount.errors import BadCheckpoint
from headcount.surgery.blueprint import build_empty, model_class, read_config
from headcount.surgery.load import fetch


def in_order(checkpoints: Iterable[str | Path]) -> list[str]:
    """The directories that names and patterns stand for; neighbours in one directory by their numbers.

    >>> in_order(["run/epoch-1", "run/epoch-10", "run/epoch-2", "run"])
    ['run/epoch-1', 'run/epoch-2', 'run/epoch-10', 'run']
    """
    paths: list[Path] = []
    for given in map(str, checkpoints):
        matches = [given]
        if not Path(given).exists() and any(sign in given for sign in "*?["):
            matches = [match for match in glob.glob(given) if Path(match).is_dir()]
            if not matches:
                raise BadCheckpoint(f"no directory is called {given}; name the checkpoints' directories")
        paths += map(Path, matches)
    if not paths:
        raise BadCheckpoint("there are no checkpoints to track; name one directory or more")
    if len(set(paths)) < len(paths):
        raise BadCheckpoint(f"{Counter(paths).most_common(1)[0][0]} is named twice; name each checkpoint once")
    families = [sorted(some, key=_by_numbers) for _, some in groupby(paths, key=lambda path: path.parent)]
    return [str(path) for some in families for path in some]


def refuse_different(paths: Sequence[str]) -> None:
    """Checkpoints of one training run have the same class, heads and weights; only configurations are read."""
    first: dict[str, Any] = {}
    for path in paths:
        directory = fetch(path)
        config = read_config(directory)
        model = build_empty(config, model_class(config, directory))
        shape: dict[str, Any] = {"class": type(model).__name__}
        shape |= {site.name: f"{len(site.kept)} heads of {site.head_dim}" for site in anatomy(model).sites}
        shape |= {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
        first = first or shape
        for key in (*first, *shape):
            if first.get(key) != shape.get(key):
                here, there = shape.get(key, "missing"), first.get(key, "missing")
                raise BadCheckpoint(
                    f"{path} has another shape than {paths[0]}: its {key} is {here}, not {there}; "
                    "track the checkpoints of one training run"
                )


def _by_numbers(path: Path) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]
