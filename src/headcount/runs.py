"""A run is a directory, and what its numbers depend on is its signature.

`RUN/` holds `run.json` (signature, arguments, results) and `outcomes/` (one file per finished shard of examples). The
signature names the exact model, the data, the settings and the versions behind a number. The same signature resumes
the run; another one is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headcount
from headcount.errors import RunConflict, counted
from headcount.files import read_object, to_json, write_whole

if TYPE_CHECKING:  # torch and transformers are imported where they are needed: a wrong directory is refused without
    import numpy as np
    from torch import nn

log = logging.getLogger("headcount")
RUN, SHARDS, LOCK = "run.json", "outcomes", "lock"
LEFT = ".*.partial"  # what a process that was killed while it wrote has left behind
SAMPLED = 4096  # values of each tensor that enter a model's fingerprint
CHECKSUM = 32  # bytes in front of a shard
# Arguments that results do not depend on.
ANYHOW = {"command_line", "as_json", "quiet", "dry_run", "out", "device", "engine", "address", "workers", "threads"}


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
        from filelock import FileLock, Timeout

        refuse_other_directories(self.path)
        lock = FileLock(self.path / LOCK)
        try:
            (self.path / SHARDS).mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)  # the system drops it when the process ends, however it ends
        except Timeout:
            raise RunConflict(
                f"{self.path} is in use by another process", advice="wait for it, or choose another {run}"
            ) from None
        except OSError as error:
            why = error.strerror or error
            raise RunConflict(f"cannot use {self.path} as a run directory: {why}", "choose another {run}") from error
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
        content = {**results, "finished": ended, "arguments": self.arguments, "signature": self.signature}
        write_whole(self.path / RUN, to_json(content).encode())

    def save_shard(self, name: str, arrays: dict[str, np.ndarray]) -> None:
        """Keep a finished shard, with a checksum in front."""
        from safetensors.numpy import save

        content = save(arrays)
        write_whole(self.path / SHARDS / f"{name}.shard", hashlib.sha256(content).digest() + content)

    def load_shard(self, name: str) -> dict[str, np.ndarray] | None:
        """A finished shard, or None if it is missing or damaged."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        file = self.path / SHARDS / f"{name}.shard"
        with contextlib.suppress(OSError, SafetensorError, ValueError, KeyError, TypeError):
            content = file.read_bytes()
            if hashlib.sha256(content[CHECKSUM:]).digest() == content[:CHECKSUM]:
                return load(content[CHECKSUM:])
        return None

    def _begin_or_resume(self) -> None:
        known = read_run(self.path)
        if known is None or (known.get("signature") != self.signature and self._holds_nothing(known)):
            self.write({})
            return
        if known.get("signature") != self.signature:
            raise RunConflict(
                f"{self.path} holds the results of a different run",
                advice=f"{self._difference(known)}; choose another {{run}}",
            )
        kept = len(list((self.path / SHARDS).glob("*.shard")))
        if kept and not known.get("finished"):
            log.info("resuming the run in %s, which has %s", self.path, counted(kept, "finished shard"))

    def _holds_nothing(self, known: dict[str, Any]) -> bool:
        """Whether the run that is there ended before it had anything, as one does whose options are refused."""
        own = {self.path / name for name in (RUN, SHARDS, LOCK)}
        files = {*self.path.iterdir(), *(self.path / SHARDS).iterdir()}
        return set(known) <= {"finished", "arguments", "signature"} and not known.get("finished") and files <= own

    def _difference(self, known: dict[str, Any]) -> str:
        """What the run was made with, and what is asked for now: an option if one differs, else the signature."""
        signatures = (known.get("signature"), self.signature)  # the first is from a file: anything
        made, command = (one.get("command") if isinstance(one, dict) else None for one in signatures)
        if made and command and made != command:
            return f"it was made by headcount {made}, not by headcount {command}"
        before, now = known.get("arguments") or {}, json.loads(json.dumps(self.arguments, default=str))
        for name in sorted({*before, *now} - ANYHOW) if before and now else ():
            if before.get(name) != now.get(name):
                was, asked = (_as_given(name, given.get(name)) for given in (before, now))
                return f"the run was made with{f' {was}' if was else f'out {{{name}}}'}, now {asked or 'without it'}"
        return _difference_in_words(known.get("signature"), self.signature)


def _as_given(name: str, value: Any) -> str:
    """An option as it was given; nothing if it was not, and a flag without a value."""
    return "" if value is None or value is False else f"{{{name}}}" if value is True else f"{{{name}}} {value}"


def refuse_other_directories(path: Path) -> None:
    """Refuse to keep a run in a directory that holds something else, or that cannot be made."""
    if not str(path) or path == Path():
        raise RunConflict("a run needs a directory of its own", advice="name one with {run}")
    if path.is_file():
        raise RunConflict(f"{path} is a file", advice="choose another {run}")
    if any(parent.is_file() for parent in path.parents):
        raise RunConflict(f"{path} is inside a file", advice="choose another {run}")
    if path.is_dir() and not (path / RUN).exists():
        begun = {path / SHARDS, path / LOCK, *path.glob(LEFT)}  # by a process that was killed
        others = sorted(set(path.iterdir()) - begun)
        if others:
            raise RunConflict(f"{path} is not a run directory: it holds {others[0].name!r}", "choose another {run}")


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
    import torch
    import transformers

    return {
        "headcount": headcount.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def model_signature(model: nn.Module) -> dict[str, Any]:
    """Name, class and fingerprint of a model."""
    from headcount.structure import came_from

    return {
        "name": came_from(model) or type(model).__name__,
        "class": type(model).__name__,
        "fingerprint": fingerprint(model),
    }


def fingerprint(model: nn.Module) -> str:
    """A short hash of a model's weights: every tensor's name and shape, and values spread evenly over it."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        if not tensor.is_meta and tensor.numel():
            step = max(1, tensor.numel() // SAMPLED)
            digest.update(tensor.detach().reshape(-1)[::step].contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _difference_in_words(before: Any, now: Any) -> str:
    """Where two signatures differ first; a hash is never shown, but what it is of.

    >>> before, now = ({"tasks": [{"fingerprint": f"{n:016x}", "n": n}]} for n in (300, 200))
    >>> _difference_in_words(before, now)
    'the run was made on 300 examples, now 200'
    >>> _difference_in_words({"model": {"fingerprint": "0" * 16}}, {"model": {"fingerprint": "1" * 16}})
    "the model's weights are not the same"
    """
    found = list(_differences(before, now))
    for where, was, asked in found:
        if not any(isinstance(value, str) and re.fullmatch("[0-9a-f]{16}", value) for value in (was, asked)):
            what = f"on {counted(was, 'example')}" if where.endswith(".n") else f"with {where} {str(was)[:60]}"
            return f"the run was made {what}, now {str(asked)[:60]}"
    of_model = all(where.startswith("model") for where, _, _ in found)
    return "the model's weights are not the same" if of_model else "the data are not the same"


def _differences(before: Any, now: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every value in which two signatures differ, with its place."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted({*before, *now}):
            yield from _differences(before.get(key), now.get(key), f"{where}.{key}".lstrip("."))
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for place, pair in enumerate(zip(before, now, strict=True)):
            yield from _differences(*pair, f"{where}[{place}]")
    elif before != now:
        yield where or "signature", before, now
