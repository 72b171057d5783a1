"""Sweeps for a long time, with the memory looked at: it must stay flat.

    python -m benchmarks.soak                      # 20 minutes
    python -m benchmarks.soak --minutes 2 --examples 8 --json soak.json

One head off at a time on MiniLM and SST-2, over and over, alternating with scores by gradient and roles, each time in a
new run directory. Resident memory is sampled once a second. Of what has been freed, glibc's allocator keeps some, and
not always the same; so after each round it is told to give that back, and then three things are counted: resident
memory, bytes that are allocated, and Python's objects. After a warm-up (a tenth of the time) a line through the rounds
says by how much each would grow in an hour. Real models and data are found by HEADCOUNT_SHARED (default ../shared).
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sweep import SHARED, classifier
from headcount import ablate_each, find_roles, importance
from headcount.roles import Sentences

PAGE, MEGABYTE = 4096, 2**20


@dataclass(frozen=True)
class Round:
    """What is left after a round: seconds since the start, megabytes, a count.

    peak: the highest resident memory that was sampled during the round.
    """

    seconds: float
    peak: float
    resident: float
    allocated: float
    objects: int


class Allocations(ctypes.Structure):
    """`struct mallinfo2` of malloc.h: all sizes in bytes; uordblks in heaps and hblkhd in maps of their own."""

    _fields_ = (
        ("arena", ctypes.c_size_t),
        ("counts", ctypes.c_size_t * 3),
        ("hblkhd", ctypes.c_size_t),
        ("fast", ctypes.c_size_t * 2),
        ("uordblks", ctypes.c_size_t),
        ("free", ctypes.c_size_t * 2),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--json", help="write every round and every sample to this file")
    options = parser.parse_args()
    seconds = 60 * options.minutes
    model, task, _ = classifier(6)
    task = task.subset(range(options.examples))
    sentences = Sentences.of(SHARED / "data" / "ud" / "en_ewt-dev.conllu").take(options.examples)
    samples: list[tuple[float, float]] = []
    rounds: list[Round] = []
    begun = time.monotonic()
    threading.Thread(target=sample, args=(samples, begun), daemon=True).start()
    while time.monotonic() - begun < seconds:
        first = len(samples)
        work(model, task, sentences)
        peak = max(size for _, size in samples[first:])
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        rounds.append(Round(time.monotonic() - begun, peak, resident(), allocated(), len(gc.get_objects())))
    print(f"{len(rounds)} rounds in {options.minutes:g} minutes, memory sampled {len(samples)} times")
    late = [one for one in rounds if one.seconds > 0.1 * seconds]
    tell("highest in a round, MB", late, "peak")
    tell("resident after a round, MB", late, "resident")
    tell("allocated after a round, MB", late, "allocated")
    tell("Python objects after a round", late, "objects")
    if options.json:
        Path(options.json).write_text(json.dumps({"rounds": [asdict(one) for one in rounds], "samples": samples}))


def work(model: Any, task: Any, sentences: Sentences) -> None:
    with tempfile.TemporaryDirectory() as place:
        ablate_each(model, task, run=Path(place) / "ablate", resamples=100)
        importance(model, task, run=Path(place) / "importance")
        find_roles(model, sentences, task.tokenizer, run=Path(place) / "roles")


def tell(what: str, rounds: list[Round], name: str) -> None:
    """The range after the warm-up, the halves beside each other, and the slope."""
    times, sizes = np.array([(one.seconds, getattr(one, name)) for one in rounds]).T
    slope, _ = np.polyfit(times, sizes, 1)
    first, second = np.median(sizes[: len(sizes) // 2]), np.median(sizes[len(sizes) // 2 :])
    print(
        f"{what}: {sizes.min():,.1f} to {sizes.max():,.1f}, median {first:,.1f} in the first half and {second:,.1f} in "
        f"the second, {slope * 3600:+,.2f} an hour"
    )


def sample(samples: list[tuple[float, float]], begun: float) -> None:
    """Seconds since the start, and megabytes, once a second."""
    while True:
        samples.append((time.monotonic() - begun, resident()))
        time.sleep(1)


def resident() -> float:
    """Megabytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / MEGABYTE


def allocated() -> float:
    """Megabytes that were asked for and not freed."""
    count = ctypes.CDLL(None).mallinfo2
    count.restype = Allocations
    now = count()
    return (now.uordblks + now.hblkhd) / MEGABYTE


if __name__ == "__main__":
    main()
