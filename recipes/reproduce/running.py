"""Run the parts of every experiment, each in its own run directory, and collect the results; finished runs are kept."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from recipes.reproduce.experiments import Experiment, Part

from headcount.cli.app import call
from headcount.errors import HeadcountError, duration
from headcount.runs import model_signature, read_run
from headcount.surgery import load


@dataclass
class Results:
    """What was computed: `runs[experiment][part]` is a `run.json`; `missing` says what there is none of."""

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    experiments: dict[str, Experiment] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    speed: dict[str, Any] | None = None
    sizes: dict[str, Any] = field(default_factory=dict)

    def add_experiment(self, one: Experiment) -> None:
        self.experiments[one.name] = one
        self.runs[one.name] = {}

    def miss_model(self, one: Experiment) -> None:
        how = f" (made by `{one.recipe}`)" if one.recipe else ""
        self.missing.append(f"{one.name}: no model {one.model}{how}")

    def add(self, one: Experiment, part: Part, run: dict[str, Any] | None) -> None:
        if run is None:
            self.missing.append(f"{one.name}: {part.title} not computed yet")
        else:
            self.runs[one.name][part.name] = _undefined_as_nan(run)

    @property
    def parts(self) -> set[str]:
        """The names of all parts that any experiment has."""
        return {part for runs in self.runs.values() for part in runs}

    def of(self, part: str) -> dict[str, dict[str, Any]]:
        """The runs of one part, by experiment."""
        return {name: runs[part] for name, runs in self.runs.items() if part in runs}


def directory_of(out: Path, one: Experiment, part: Part, limit: int) -> tuple[Path, list[str]]:
    """The run directory of a part, and its command; every command has its own directory."""
    command = [*part.command(one), "--limit", str(limit)]
    digest = hashlib.sha256("\0".join(command).encode()).hexdigest()[:8]
    return out / f"{one.name.lower().replace(' ', '-')}-{part.name}-{digest}", command


def run_part(out: Path, one: Experiment, part: Part, limit: int, compute: bool = True) -> dict[str, Any] | None:
    """The part's `run.json`, computed first if necessary; None if there is none."""
    path, command = directory_of(out, one, part, limit)
    known = read_run(path)
    if known is not None and known["signature"]["model"]["fingerprint"] != weights_of(part.model(one)):
        raise HeadcountError(f"{path} is a run with other weights than {part.model(one)} has now; remove it")
    if not (known and known.get("finished")) and compute:
        begun = time.monotonic()
        print(f"{one.name}, {part.title}: headcount {' '.join(command)}", flush=True)
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # tables; the numbers are in run.json
                call([*command, "--out", str(path)])
        except HeadcountError as error:
            print(f"  failed: {error}", flush=True)
            return None
        print(f"  done in {(time.monotonic() - begun) / 60:.1f} minutes", flush=True)
        known = read_run(path)
    return {**known, "directory": str(path)} if known and known.get("finished") else None


def forecast(out: Path, asked: list[tuple[Experiment, Part, int]], untried: list[str]) -> float:
    """Print how long each part that is not finished will take here, by trial runs on samples; seconds of all of them.

    untried: what else will be computed; it is named, as is a part that reads what another has yet to make.
    """
    total, unknown = 0.0, list(untried)
    for one, part, limit in asked:
        path, command = directory_of(out, one, part, limit)
        known = read_run(path)
        if known and known.get("finished"):
            continue
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                call([*command, "--dry-run", "--json"])
            seconds = float(json.loads(said.getvalue())["seconds"])
        except (HeadcountError, ValueError, KeyError):
            unknown.append(f"{one.name}, {part.title}")
            continue
        total += seconds
        print(f"{one.name}, {part.title}: about {duration(seconds)}", flush=True)
    more = f"; not counted, as it cannot be tried: {'; '.join(unknown)}" if unknown else ""
    print(f"Together about {duration(total)} here{more}.", flush=True)
    return total


@cache
def weights_of(model: str) -> str:
    """The fingerprint of a model's weights, as runs keep it."""
    return model_signature(load(model, dtype=torch.float32))["fingerprint"]


def _undefined_as_nan(value: Any) -> Any:
    """A share of a score of 0 is undefined: null in JSON, nan in arithmetic.

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
