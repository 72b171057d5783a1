"""The run of a command: its directory under `--out`, signed results, and what is refused before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headcount.cli.options import Setup
from headcount.runs import RunDirectory, model_signature, versions


@contextmanager
def run_of(setup: Setup, command: str, model: Any, tasks: list[Any], **settings: Any) -> Iterator[CommandRun]:
    """The run of a command; `settings` are the arguments that its outcomes depend on."""
    signature = {
        "command": command,
        "model": model_signature(model),
        "tasks": [task.signature() for task in tasks],
        "seed": setup.seed,
        **settings,
        "versions": versions(),
    }
    if setup.out is None:
        yield CommandRun(NoRun("", signature), command)
        return
    with RunDirectory(setup.out, signature, setup.arguments()).open() as directory:
        yield CommandRun(directory, command)


class CommandRun:
    """A command under way: `directory` keeps its shards, `finish` its results."""

    def __init__(self, directory: RunDirectory, command: str) -> None:
        self.directory, self.command = directory, command

    def finish(self, results: dict[str, Any]) -> dict[str, Any]:
        """Sign the results and keep them in `run.json`."""
        self.directory.write({"command": self.command, **results})
        return {"signature": self.directory.signature, **results}


class NoRun(RunDirectory):
    """Stands in where no `--out` was given: results are only returned."""

    def write(self, results: dict[str, Any], finished: bool = True) -> None:
        """Keep nothing."""

    def save_shard(self, name: str, arrays: Any) -> None:
        """Keep nothing."""

    def load_shard(self, name: str) -> None:
        """Find nothing."""
