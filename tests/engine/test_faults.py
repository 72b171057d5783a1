"""What really happens to runs: killed at any moment, a full disk, a directory that cannot be written, damaged files."""

import contextlib
import multiprocessing
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from headcount import Classification, anatomy, importance
from headcount.engine import shards
from headcount.errors import RunConflict
from headcount.evaluation import evaluate
from headcount.runs import read_run
from headcount.tasks.text import word_tokenizer
from tiny_models import bert

KILLS = 20
SMALL = 3e6  # operations in a shard
WORDS = "a fine dull film was seen by all of us"


def texts():
    rows = [{"text": " ".join(WORDS.split()[: 1 + place % 9]), "label": place % 2} for place in range(150)]
    return Classification(rows, word_tokenizer(WORDS))


@pytest.fixture
def task(monkeypatch):
    monkeypatch.setattr(shards, "WORK", SMALL)
    return texts()


def masks(model):
    return [(), *([head] for head in anatomy(model).heads)]


def sweep_and_score(directory, slow=0.0):
    """What is killed, in a process of its own."""
    shards.WORK = SMALL
    model, task = bert(), texts()
    evaluate(model, task, masks(model), run=directory, tokens=32, progress=lambda share: time.sleep(slow))
    importance(model, task, run=directory / "scores")


def contents(directory):
    return {file.name: file.read_bytes() for file in sorted((directory / "outcomes").iterdir())}


def test_killed_twenty_times_at_random_moments(tmp_path):
    processes = multiprocessing.get_context("forkserver")  # autograd's threads do not survive a plain fork
    processes.set_forkserver_preload(["headcount.engine", "headcount.scoring", "headcount.tasks", "tiny_models"])

    def begin(*arguments):
        process = processes.Process(target=sweep_and_score, args=arguments)
        process.start()
        return process

    begun = time.monotonic()
    for place in ("warm-up", "whole"):
        begun = time.monotonic()
        whole = begin(tmp_path / place)
        whole.join()
        assert whole.exitcode == 0
    takes, rng = time.monotonic() - begun, random.Random(0)
    killed, unfinished = 0, set()
    while killed < KILLS:
        process = begin(tmp_path / "killed", 0.002)
        process.join(rng.uniform(0.2, 1.0) * takes)
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        if process.exitcode == 0:  # it was faster: begin anew
            takes *= 0.9
            shutil.rmtree(tmp_path / "killed")
            continue
        assert process.exitcode == -signal.SIGKILL
        killed += 1
        outcomes = tmp_path / "killed" / "outcomes"
        unfinished.add(len(list(outcomes.iterdir())) if outcomes.is_dir() else 0)
    last = begin(tmp_path / "killed")
    last.join()
    assert last.exitcode == 0
    assert len(unfinished) > 3  # they died at different moments
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")  # and nothing half-written beside it
    assert contents(tmp_path / "killed" / "scores") == contents(tmp_path / "whole" / "scores")


@pytest.mark.slow
def test_the_command_line_killed_twenty_times(shared, tmp_path):
    """On a real model, in fresh processes."""
    command = [
        sys.executable, "-c", "from headcount.cli import main; main()",
        "ablate", str(shared / "models" / "minilm-sst2"),
        "--data", str(shared / "data" / "sst2" / "dev.tsv"), "--limit", "64", "--kind", "encoder", "--layers", "3-5",
    ]  # fmt: skip
    run = lambda out, **options: subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.DEVNULL, **options)  # noqa: E731
    begun = time.monotonic()
    assert run(tmp_path / "whole").wait() == 0
    takes, rng = time.monotonic() - begun, random.Random(1)
    killed = 0
    while killed < KILLS:
        process = run(tmp_path / "killed", stderr=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0.3, 1.0) * takes)
        if process.poll() is None:
            process.kill()
            process.wait()
            killed += 1
        else:
            takes *= 0.9  # the first run may have been on a busier machine
            shutil.rmtree(tmp_path / "killed")
    assert run(tmp_path / "killed").wait() == 0
    whole, again = (read_run(tmp_path / name) for name in ("whole", "killed"))
    assert whole["heads"] == again["heads"]
    assert len(whole["heads"]) == 36
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def fails_then_goes_on(task, directory, fill, free):
    """A sweep in a place that is too small says so, keeps what it has, and resumes to the same end with more room."""
    model = bert()
    expected = evaluate(model, task, masks(model), tokens=32)
    fill()
    with pytest.raises(RunConflict, match=r"cannot write .*\.shard"):
        evaluate(model, task, masks(model), run=directory, tokens=32)
    kept = contents(directory)
    assert kept
    assert not any(name.endswith(".partial") for name in kept)
    free()
    assert np.array_equal(evaluate(model, task, masks(model), run=directory, tokens=32).values, expected.values)
    assert kept.items() <= contents(directory).items()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 96 KB."""
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96k", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_disk(task, small_disk):
    ballast = small_disk / "ballast"

    def fill():
        (small_disk / "run").mkdir()
        ballast.write_bytes(bytes(40 * 1024))

    def free():
        ballast.unlink()
        subprocess.run(["mount", "-o", "remount,size=4m", small_disk], check=True)

    fails_then_goes_on(task, small_disk / "run", fill, free)


def test_a_quota(task, tmp_path):
    """No file may be larger than one that a shard needs, from the fourth shard on."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    written = []
    original = os.replace

    def count(source, target):
        original(source, target)
        written.append(target)
        if len(written) == 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))

    def free():
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "replace", count)
            fails_then_goes_on(task, tmp_path / "run", lambda: None, free)
    finally:
        free()
        signal.signal(signal.SIGXFSZ, handler)
    assert len(written) > 8


def test_a_read_only_directory(task, small_disk):
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(RunConflict, match=f"{small_disk}.*Read-only"):
        evaluate(bert(), task, [()], run=small_disk / "run")


def test_a_directory_that_nobody_can_make(task):
    place = "/proc/headcount-run" if Path("/proc").is_dir() else "/dev/null/run"
    with pytest.raises(RunConflict, match=place):
        evaluate(bert(), task, [()], run=place)


@pytest.mark.parametrize("place", [3, 40, -5])
def test_one_wrong_bit_is_found_and_computed_again(task, tmp_path, place):
    model = bert()
    expected = evaluate(model, task, masks(model), run=tmp_path, tokens=32)
    victim = sorted((tmp_path / "outcomes").iterdir())[1]
    content = bytearray(victim.read_bytes())
    whole = bytes(content)
    content[place] ^= 4
    victim.write_bytes(content)
    assert np.array_equal(evaluate(model, task, masks(model), run=tmp_path, tokens=32).values, expected.values)
    assert victim.read_bytes() == whole
