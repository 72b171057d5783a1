"""What every command with `--out` does: open its run directory, and write the results there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headcount.cli.options import Setup
from headcount.engine import RunDirectory
from headcount.signature import model_signature, versions


class NoRun(RunDirectory):
    """Stands in where no `--out` was given: results are only returned."""

    def write(self, results: dict[str, Any], finished: bool = True) -> None:
        """Nothing to write to."""

    def save_shard(self, name: str, arrays: Any) -> None:
        """Nothing to keep."""

    def load_shard(self, name: str) -> None:
        """Nothing kept."""


class Run:
    """A command under way: `directory` for its shards, `finish` for its results."""

    def __init__(self, directory: RunDirectory, command: str) -> None:
        self.directory, self.command = directory, command

    def finish(self, results: dict[str, Any]) -> dict[str, Any]:
        """Sign the results and keep them in `run.json`."""
        self.directory.write({"command": self.command, **results})
        return {"signature": self.directory.signature, **results}


@contextmanager
def run_of(setup: Setup, command: str, model: Any, tasks: list[Any], **settings: Any) -> Iterator[Run]:
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
        yield Run(NoRun("", signature), command)
        return
    with RunDirectory(setup.out, signature, setup.arguments()).open() as directory:
        yield Run(directory, command)
