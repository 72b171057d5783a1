"""A run is a directory, and what its numbers depend on is its signature.

`RUN/` holds `run.json` (signature, arguments, results) and `outcomes/` (one file per finished shard of examples). The
signature names the exact model, the data, the settings and the versions behind a number. The same signature resumes
the run; another one is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import nn

import headcount
from headcount.errors import RunConflict
from headcount.files import read_object, to_json, write_whole
from headcount.structure import came_from

RUN, SHARDS, LOCK = "run.json", "outcomes", "lock"
LEFT = ".*.partial"  # what a process that was killed while it wrote has left behind
SAMPLED = 4096  # values of each tensor that enter a model's fingerprint
CHECKSUM = 32  # bytes in front of a shard


class RunDirectory:
    """A run on disk: one process at a time, always the same signature, files whole or not there.

    A directory that holds a different run, or other files, is refused.

    signature: what the results depend on. arguments: what the user wrote, kept beside the results.
    """

    def __init__(self, path: str | Path, signature: dict[str, Any], arguments: dict[str, Any] | None = None) -> None:
        self.path = Path(path)
        self.signature = json.loads(json.dumps(signature, sort_keys=True, default=str))
        self.arguments = arguments or {}

    @contextmanager
    def open(self) -> Iterator[RunDirectory]:
        """Use the directory, alone, as long as the block lasts."""
        self._refuse_other_directories()
        lock = FileLock(self.path / LOCK)
        try:
            (self.path / SHARDS).mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)  # the system drops it when the process ends, however it ends
        except Timeout:
            raise RunConflict(
                f"{self.path} is in use by another process", advice="wait for it, or choose another {run}"
            ) from None
        except OSError as error:
            raise RunConflict(f"cannot use {self.path} as a run directory: {error.strerror or error}") from error
        try:
            self._begin_or_resume()
            for left in (*self.path.glob(LEFT), *(self.path / SHARDS).glob(LEFT)):
                left.unlink(missing_ok=True)
            yield self
        finally:
            lock.release()

    def write(self, results: dict[str, Any], finished: bool = True) -> None:
        """Write `run.json`; without results, or with those that there are so far, the run is unfinished."""
        ended = bool(results) and finished
        content = {"signature": self.signature, "arguments": self.arguments, "finished": ended, **results}
        write_whole(self.path / RUN, to_json(content).encode())

    def save_shard(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        """Keep a finished shard, with a checksum in front."""
        content = save(arrays)
        write_whole(self.path / SHARDS / f"{name}.shard", hashlib.sha256(content).digest() + content)

    def load_shard(self, name: str) -> dict[str, np.ndarray] | None:
        """A finished shard, or None if it is missing or damaged."""
        file = self.path / SHARDS / f"{name}.shard"
        with contextlib.suppress(OSError, SafetensorError, ValueError, KeyError, TypeError):
            content = file.read_bytes()
            if hashlib.sha256(content[CHECKSUM:]).digest() == content[:CHECKSUM]:
                return load(content[CHECKSUM:])
        return None

    def _refuse_other_directories(self) -> None:
        if not str(self.path) or self.path == Path():
            raise RunConflict("a run needs a directory of its own", advice="name one with {run}")
        if self.path.is_dir() and not (self.path / RUN).exists():
            begun = {self.path / SHARDS, self.path / LOCK, *self.path.glob(LEFT)}  # by a process that was killed
            others = sorted(set(self.path.iterdir()) - begun)
            if others:
                raise RunConflict(
                    f"{self.path} is not a run directory: it holds {others[0].name!r}", advice="choose another {run}"
                )

    def _begin_or_resume(self) -> None:
        known = read_run(self.path)
        if known is None:
            self.write({})
        elif known.get("signature") != self.signature:
            differs = _first_difference(known.get("signature"), self.signature)
            raise RunConflict(
                f"{self.path} holds the results of a different run ({differs})", advice="choose another {run}"
            )


@contextmanager
def open_run(run: str | Path | RunDirectory | None, signature: dict[str, Any]) -> Iterator[RunDirectory | None]:
    """The run directory at a path, for as long as the block lasts; one that is open already, or None, as it is."""
    if run is None or isinstance(run, RunDirectory):
        yield run
    else:
        with RunDirectory(run, signature).open() as directory:
            yield directory


def read_run(path: str | Path) -> dict[str, Any] | None:
    """What `run.json` of a directory says, or None if there is none."""
    return read_object(Path(path) / RUN)


def versions() -> dict[str, str]:
    """The versions that a result depends on.

    >>> sorted(versions())
    ['headcount', 'torch', 'transformers']
    """
    return {
        "headcount": headcount.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def model_signature(model: nn.Module) -> dict[str, Any]:
    """Name, class and fingerprint of a model."""
    return {
        "name": came_from(model) or type(model).__name__,
        "class": type(model).__name__,
        "fingerprint": fingerprint(model),
    }


@torch.no_grad()
def fingerprint(model: nn.Module) -> str:
    """A short hash of a model's weights: every tensor's name and shape, and values spread evenly over it."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        if not tensor.is_meta and tensor.numel():
            step = max(1, tensor.numel() // SAMPLED)
            digest.update(tensor.reshape(-1)[::step].contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _first_difference(before: Any, now: Any, where: str = "") -> str:
    """Where two signatures differ first, in words.

    >>> _first_difference({"tasks": [{"n": 3}]}, {"tasks": [{"n": 4}]})
    "tasks[0].n was '3', is '4'"
    """
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key):
                return _first_difference(before.get(key), now.get(key), f"{where}.{key}".lstrip("."))
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for place, pair in enumerate(zip(before, now, strict=True)):
            if pair[0] != pair[1]:
                return _first_difference(*pair, f"{where}[{place}]")
    return f"{where or 'signature'} was {str(before)[:60]!r}, is {str(now)[:60]!r}"
