"""Run parts one after the other, each in a run directory of its own; what is finished is not run again."""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch
from recipes.reproduce.experiments import Experiment
from recipes.reproduce.parts import Part

from headcount.cli.app import call
from headcount.errors import HeadcountError
from headcount.runs import model_signature, read_run
from headcount.surgery.loading import load


def directory_of(out: Path, one: Experiment, part: Part, limit: int) -> tuple[Path, list[str]]:
    """The run directory of a part, and its command; another command has another directory."""
    command = [*part.command(one), "--limit", str(limit)]
    digest = hashlib.sha256("\0".join(command).encode()).hexdigest()[:8]
    return out / f"{one.name.lower().replace(' ', '-')}-{part.name}-{digest}", command


def run_part(out: Path, one: Experiment, part: Part, limit: int, compute: bool = True) -> dict[str, Any] | None:
    """What the part's `run.json` says, computed first if it has to be; None if it is not there."""
    path, command = directory_of(out, one, part, limit)
    known = read_run(path)
    if known is not None and known["signature"]["model"]["fingerprint"] != _weights(one.model):
        raise HeadcountError(f"{path} is a run of other weights than {one.model} has now; remove it")
    if not (known and known.get("finished")) and compute:
        begun = time.monotonic()
        print(f"{one.name}, {part.title}: headcount {' '.join(command)}", flush=True)
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # tables; the numbers are in run.json
                call([*command, "--out", str(path)])
        except HeadcountError as error:
            print(f"  not done: {error}", flush=True)
            return None
        print(f"  done in {(time.monotonic() - begun) / 60:.1f} minutes", flush=True)
        known = read_run(path)
    return _undefined_as_nan(known) if known and known.get("finished") else None


@cache
def _weights(model: str) -> str:
    """The fingerprint of a model's weights, as runs keep it."""
    return model_signature(load(model, dtype=torch.float32))["fingerprint"]


def _undefined_as_nan(value: Any) -> Any:
    """A share of a score of nothing: null in JSON, nan to reckon with.

    >>> _undefined_as_nan([{"relative": None, "name": None}])
    [{'relative': nan, 'name': None}]
    """
    if isinstance(value, list):
        return [_undefined_as_nan(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: math.nan if item is None and key in ("relative", "advantage") else _undefined_as_nan(item)
        for key, item in value.items()
    }
