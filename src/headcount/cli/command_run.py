"""The run of a command: its directory under `--out`, signed results, and what is refused before anything starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from headcount.cli.options import Setup
from headcount.errors import BadData, HeadcountError, RunConflict
from headcount.export import part_path
from headcount.files import looks_like_a_file
from headcount.model_directory import DESCRIPTION, fetch, refuse_unlike_model
from headcount.runs import RUN, RunDirectory, model_signature, read_run, refuse_other_directories, versions

MODELS, DATA = ("model", "other", "pruned", "onnx"), ("data", "test", "against")  # and whatever ends in _data


def refuse_unusable(given: Mapping[str, Any], out: str | None) -> None:
    """Refuse models, files and run directories that are not there or hold something else, before slow imports.

    given: all arguments of a command. out: its run directory.
    """
    for name in MODELS:
        for model in given[name] if isinstance(given.get(name), list) else filter(None, [given.get(name)]):
            refuse_missing_model(model)
    for name, value in given.items():
        names_data = isinstance(value, str) and (name in DATA or name.endswith("_data"))
        if names_data and looks_like_a_file(value) and not Path(value).expanduser().exists():
            raise BadData(f"there is no file {value}", advice=f"change {{{name}}}")
    if out is not None:
        refuse_other_directories(Path(out))


def refuse_missing_model(name: str) -> None:
    """Refuse a model that is neither a directory of one, nor on the hub, nor an ONNX file."""
    file = Path(name)
    if any(sign in name for sign in "*?[") and not file.exists():
        return  # a pattern of `track`, which refuses one that nothing matches
    if file.suffix == ".onnx":
        if not file.is_file() and not part_path(file, "encoder").is_file():
            raise HeadcountError(f"there is no file {name}")
    else:
        refuse_unlike_model(fetch(name, DESCRIPTION))


def refuse_finished(out: Path) -> None:
    """Refuse a directory that holds a finished run, for a command that saves a model in it: nothing is overwritten."""
    known = read_run(out)
    if known is not None and known.get("finished"):
        raise RunConflict(f"{out} already holds a finished run", advice="choose another {out}")


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


def mention_report(setup: Setup) -> None:
    """The last line of a command that has kept a run."""
    from headcount.cli.console import messages

    if setup.out is not None and not setup.as_json and (Path(setup.out) / RUN).is_file():
        line = f"A page about this run: headcount report {quote(setup.out)}"
        messages.print(line, style="dim", markup=False, soft_wrap=True)


class CommandRun:
    """A command under way: `directory` keeps its shards, `finish` its results."""

    def __init__(self, directory: RunDirectory, command: str) -> None:
        self.directory, self.command = directory, command

    def finish(self, results: dict[str, Any]) -> dict[str, Any]:
        """Sign the results and keep them in `run.json`."""
        self.directory.write({"command": self.command, **results})
        return {**results, "signature": self.directory.signature}


class NoRun(RunDirectory):
    """Stands in where no `--out` was given: results are only returned."""

    def write(self, results: dict[str, Any], finished: bool = True) -> None:
        """Keep nothing."""

    def save_shard(self, name: str, arrays: Any) -> None:
        """Keep nothing."""

    def load_shard(self, name: str) -> None:
        """Find nothing."""
