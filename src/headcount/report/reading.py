"""What the report reads: run directories, what `--json` printed, and results that can tell the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headcount.errors import HeadcountError, RunConflict, first_line
from headcount.report.runs import ALONE, TELLING, Run, mapping, rows

RUN, SHARDS, GATES = "run.json", "outcomes", "gates/gates.json"
AGAIN = "name what a command wrote with --out"


def read(result: Any) -> Run:
    """A run directory, its `run.json`, what `--json` printed, or a result that can tell it."""
    if isinstance(result, Run):
        return result
    if isinstance(result, (str, Path)):
        return _read_directory(Path(result))
    for way in ("to_json", "to_dict"):
        if not isinstance(result, Mapping) and callable(getattr(result, way, None)):
            result = _told(result, getattr(result, way)())
    if isinstance(result, Mapping):
        return Run(result)
    raise HeadcountError(
        f"{type(result).__name__} is nothing to report on; pass run directories, or results of headcount's functions"
    )


def _told(result: Any, said: Any) -> Any:
    """What a result says of itself, with what it only knows: its metric and its signature."""
    if not isinstance(said, Mapping):
        return said
    known = {
        "signature": getattr(result, "signature", None),
        "metric": getattr(getattr(result, "metric", None), "name", None),
    }
    return {**known, **({"curves": [said]} if "points" in said else said)}


def _read_directory(path: Path) -> Run:
    file = path if path.is_file() else path / RUN
    try:
        content = _load(file)
    except FileNotFoundError:
        why = f"it has no {RUN}" if path.is_dir() else "it does not exist"
        raise RunConflict(f"{path} is no run directory: {why}; {AGAIN}") from None
    if content.get("finished") is False and (file.parent / GATES).is_file():
        content = {**_so_far(_load(file.parent / GATES)), **content}
    run = Run(content, path.as_posix(), len(list((file.parent / SHARDS).glob("*.shard"))))
    if run.command not in (*TELLING, ALONE):
        raise RunConflict(f"{file} does not say which command of headcount wrote it; run that again with a new --out")
    return run


def _load(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise RunConflict(f"{file} is no run of headcount, or damaged ({first_line(error)}); {AGAIN}") from None
    if not isinstance(content, dict):
        raise RunConflict(f"{file} holds no JSON object, so it is no run; {AGAIN}")
    return content


def _so_far(state: dict[str, Any]) -> dict[str, Any]:
    """The stages of gates whose training was interrupted, and how the last one went until then."""
    stages = [{"name": f"stage {place}", **stage} for place, stage in enumerate(rows(state.get("stages")), 1)]
    course = mapping(state.get("course"))
    return {"stages": [*stages, *([{"name": f"stage {len(stages) + 1}, so far", **course}] if course else [])]}
