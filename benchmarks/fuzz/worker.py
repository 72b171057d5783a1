"""Give mutated inputs to a reader in a process of its own, so that a hang or a crash is known by its input's number."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import resource
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.fuzz.guard import Guard
from benchmarks.fuzz.mutate import SECRET, mutated
from headcount.errors import HeadcountError

SECONDS = 10.0  # of CPU for one input
PATIENCE = 30.0  # seconds without a sign of life after which a process is stopped
MEMORY = 2 * 2**30  # bytes on top of what the libraries take
EVIL = "open({marker!r}, 'w').close()\nclass Evil: pass\n"
PICKLE = "cbuiltins\nopen\n(S{marker!r}\nS'w'\ntR."  # leaves the marker when it is unpickled

Files = dict[str, bytes]


@dataclass
class Reader:
    """Functions that read a directory of files, valid directories to begin with, and which files are mutated."""

    name: str
    reads: tuple[Callable[[Path], Any], ...]
    seeds: list[Files]
    share: float = 1.0  # of all inputs, in proportion
    mutable: str = r".*"


@dataclass
class Report:
    """What came out of a reader's inputs."""

    inputs: int = 0
    seconds: float = 0.0
    failures: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Place:
    """Where the inputs lie: `given` is the reader's, the others are none of its business."""

    root: Path

    def __post_init__(self) -> None:
        self.given, self.outside, self.linked = (self.root / name for name in ("given", "outside", "linked"))
        marker = str(self.outside / "marker")
        self.evil = {"evil.py": EVIL.format(marker=marker).encode()}
        self.evil["pytorch_model.bin"] = PICKLE.format(marker=marker).encode()

    def plant(self, secrets: Files) -> None:
        """Files that must not be opened, and files that a link may lead to."""
        for folder in (self.outside, self.linked, self.given):
            folder.mkdir(parents=True, exist_ok=True)
        for suffix, content in secrets.items():
            for folder in (self.outside, self.linked):
                (folder / f"{SECRET}.{suffix}").write_bytes(content)

    def lay(self, reader: Reader, seed: int, number: int) -> str:
        """Write an input by its number: a valid directory with one file or two changed; says which."""
        rng = Random(f"{seed} {reader.name} {number}")
        files = dict(rng.choice(reader.seeds))
        names = [name for name in sorted(files) if re.fullmatch(reader.mutable, name)]
        chosen = rng.sample(names, min(len(names), rng.choice((1, 1, 1, 2))))
        way = rng.random()
        for name in chosen if way > 0.04 else ():
            files[name] = mutated(name, files[name], rng, str(self.outside))
        shutil.rmtree(self.given, ignore_errors=True)
        for name, content in {**files, **(self.evil if rng.random() < 0.1 else {})}.items():
            (self.given / name).parent.mkdir(parents=True, exist_ok=True)
            (self.given / name).write_bytes(content)
        if way <= 0.04:
            _displace(self.given / chosen[0], self.linked, rng)
        return ", ".join(chosen)


def _displace(file: Path, linked: Path, rng: Random) -> None:
    """Something else where a file should be."""
    file.unlink()
    kind = rng.randrange(5)
    if kind == 0:
        file.symlink_to(linked / f"{SECRET}{file.suffix}")
    elif kind == 1:
        file.symlink_to(file.name)  # a link to itself
    elif kind == 2:
        file.mkdir()
    elif kind == 3:
        file.touch()


def complaint(read: Callable[[Path], Any], given: Path) -> str | None:
    """Why a reader fails at an input: anything but a result or one sentence of headcount's own."""
    try:
        read(given)
    except HeadcountError as error:
        sentence = str(error)
        if not sentence.strip() or not sentence.isprintable() or len(sentence) > 2000:
            return f"{type(error).__name__} of more than one sentence: {sentence[:200]!r}"
    except BaseException as error:  # whatever it is, it is what we are looking for
        where = traceback.extract_tb(error.__traceback__)
        ours = [f"{Path(at.filename).name}:{at.lineno}" for at in where if "headcount" in at.filename]
        return f"{type(error).__name__} at {ours[-1] if ours else where[-1]}: {str(error)[:200]}"
    return None


def run(reader: Reader, place: Place, inputs: int, seed: int, first: int = 0) -> Report:
    """Give a reader this many inputs; a process that hangs or dies is replaced, and its input is a failure."""
    notes = place.root / "failures.jsonl"
    notes.unlink(missing_ok=True)
    started, number, dead = time.monotonic(), first, list[dict[str, Any]]()
    fork = multiprocessing.get_context("fork")
    while number < first + inputs:
        at = fork.RawValue("q", number)
        process = fork.Process(target=_work, args=(reader, place, at, first + inputs, seed, notes))
        process.start()
        why = _wait(process, at)
        if why is None:
            break
        dead.append({"reader": reader.name, "number": at.value, "files": "", "why": why})
        number = at.value + 1
    found = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
    return Report(inputs, time.monotonic() - started, found + dead)


def _wait(process: Any, at: Any) -> str | None:
    """Why a process ended early, or None."""
    before, since = at.value, time.monotonic()
    while process.is_alive():
        process.join(0.5)
        if at.value != before:
            before, since = at.value, time.monotonic()
        elif time.monotonic() - since > PATIENCE:
            process.kill()
            process.join()
            return f"hangs for more than {PATIENCE:g} s"
    return None if process.exitcode == 0 else f"the process ended with {process.exitcode}"


def _work(reader: Reader, place: Place, at: Any, end: int, seed: int, notes: Path) -> None:
    _limit_memory()
    quiet = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(quiet, descriptor)
    guard = Guard(place.given, place.outside, place.linked)
    for number in range(at.value, end):
        at.value = number
        files = place.lay(reader, seed, number)
        for read in reader.reads:
            guard.seen()
            guard.on, started = True, time.process_time()
            why = complaint(read, place.given)
            guard.on, took = False, time.process_time() - started
            whys = [*([why] if why else []), *guard.seen(), *([f"took {took:.1f} s"] if took > SECONDS else [])]
            for each in whys:
                entry = {"reader": reader.name, "read": read.__name__, "number": number, "files": files, "why": each}
                with notes.open("a") as stream:
                    stream.write(json.dumps(entry) + "\n")


def _limit_memory() -> None:
    """Where the system tells how much the libraries have taken already, that is on Linux."""
    if (taken := Path("/proc/self/statm")).exists():
        now = int(taken.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
