"""The run of a command: what is refused before it starts, its directory under `--out`, signed results; or an estimate.

The time of every command is a part that does not depend on the data (loading, the search's own arithmetic) and a part
that grows with its tokens. `--dry-run` tells them apart by two samples of the data.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from headcount.cli.options import Setup
from headcount.errors import BadData, HeadcountError, RunConflict, counted, duration
from headcount.export import part_path
from headcount.files import looks_like_a_file
from headcount.model_directory import DESCRIPTION, fetch, refuse_unlike_model
from headcount.runs import RUN, RunDirectory, model_signature, read_run, refuse_other_directories, versions

if TYPE_CHECKING:
    from headcount.cli.options import Setup


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
            raise BadData(f"{value} does not exist", advice=f"change {{{name}}}")
    if out is not None:
        refuse_other_directories(Path(out))


def refuse_missing_model(name: str) -> None:
    """Refuse a model that is neither a directory of one, nor on the hub, nor an ONNX file."""
    file = Path(name)
    if any(sign in name for sign in "*?[") and not file.exists():
        return  # a pattern of `track`, which refuses one that nothing matches
    if file.suffix == ".onnx":
        if not file.is_file() and not part_path(file, "encoder").is_file():
            raise HeadcountError(f"{name} does not exist")
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


FIRST, GROWTH = 8, 4  # examples of the first sample, and how many times as large the next one is
ENOUGH = 4.0  # seconds by which two samples have to differ to tell the pace

Trial = tuple[int, float, float]  # tokens, seconds, seconds of the processor


class Sample:
    """The part of every data set that a trial run sees: `size` examples of the largest, as large a share of the others.

    tokens, all_tokens: how many a trial run has seen, and how many there are.
    """

    def __init__(self) -> None:
        self.full: dict[Any, Any] = {}  # whole data sets by their names: each is read and tokenized once
        self.begin(FIRST)

    def begin(self, size: int) -> None:
        """Count anew, for a trial run of this size."""
        self.size, self.tokens, self.all_tokens = size, 0, 0

    @property
    def share(self) -> float:
        return min(1.0, self.size / max(map(len, self.full.values())))

    def of(self, name: Any, load: Callable[[], Any]) -> Any:
        """The sample of a data set, drawn at random."""
        if name not in self.full:
            self.full[name] = load()
        whole = self.full[name]
        size = min(len(whole), max(2, math.ceil(self.share * len(whole))))
        part = whole if size == len(whole) else _drawn(whole, size)
        self.tokens += _tokens(part)
        self.all_tokens += _tokens(whole)
        return part


def _drawn(whole: Any, size: int) -> Any:
    import numpy as np

    if not hasattr(whole, "subset"):  # sentences
        return whole.take(size)
    return whole.subset(sorted(np.random.default_rng(0).permutation(len(whole))[:size].tolist()))


def _tokens(data: Any) -> int:
    return sum(data.lengths) if hasattr(data, "lengths") else len(data)


def estimate(setup: Setup, run: Callable[[], None]) -> dict[str, Any]:
    """Run a command on growing samples, without output, until they tell its pace.

    `seconds` for all of the data, by the clock on the wall, and `processor_seconds`, which other work on the machine
    does not change.
    """
    from headcount.cli.console import console

    sample = setup.sample = Sample()
    trials: list[Trial] = []
    kept, console.quiet = console.quiet, True
    size, first = FIRST, None
    try:
        while not _tells(trials, sample):
            sample.begin(size)
            one = _trial(run, sample)
            if one is not None and first is not None:
                trials.append(one)
            if one is None or first is not None:
                size *= GROWTH
            first = first or one  # it also imports what is needed
    finally:
        console.quiet, setup.sample = kept, None
    assert first is not None
    found = {}
    for place, name in enumerate(("seconds", "processor_seconds"), start=1):
        times = [(one[0], one[place]) for one in trials]
        found[name] = extrapolated(times, sample.all_tokens) + max(0.0, first[place] - times[0][1])
    examples = {str(name[0]): len(whole) for name, whole in sample.full.items()}
    return {**found, "examples": examples, "measured": [list(one) for one in trials]}


def _trial(run: Callable[[], None], sample: Sample) -> Trial | None:
    """The tokens and seconds of one run; None if the sample is too small for this command."""
    start = time.perf_counter(), time.process_time()
    try:
        run()
    except HeadcountError:
        if not sample.full or sample.share >= 1:
            raise
        return None
    return sample.tokens, time.perf_counter() - start[0], time.process_time() - start[1]


def _tells(trials: list[Trial], sample: Sample) -> bool:
    """Whether two samples differ enough, or the last one was everything."""
    if trials and trials[-1][0] >= sample.all_tokens:
        return True
    return len(trials) > 1 and trials[-1][1] - trials[-2][1] >= ENOUGH


def extrapolated(times: list[tuple[int, float]], tokens: int) -> float:
    """The seconds for all tokens: on the line through the last two measurements.

    >>> extrapolated([(100, 2.0), (400, 5.0)], 1000)
    11.0
    >>> extrapolated([(400, 5.0)], 400)
    5.0
    """
    last, took = times[-1]
    if len(times) < 2 or last >= tokens:
        return took
    before, earlier = times[-2]
    pace = (took - earlier) / max(1, last - before)
    return took + max(0.0, pace) * (tokens - last)


def print_estimate(setup: Setup, command: str, run: Callable[[], None]) -> None:
    """What `--dry-run` prints."""
    from headcount.cli.console import console, print_json

    found = estimate(setup, run)
    if setup.as_json:
        print_json({"model": setup.model, "command": command, **found})
        return
    data = ", ".join(f"{name} ({counted(size, 'example')})" for name, size in found["examples"].items())
    console.print(f"{command} on {data}: about {duration(found['seconds'])} here.", soft_wrap=True, markup=False)
