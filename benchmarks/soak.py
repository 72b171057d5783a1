"""Sweeps for a long time, with the memory looked at: it must stay flat.

    python -m benchmarks.soak                      # 20 minutes
    python -m benchmarks.soak --minutes 2 --json soak.json

One head off at a time on MiniLM and SST-2, again and again, in turns with scores by gradient and roles, each time in a
new run directory. After a warm-up (a tenth of the time) the resident memory is sampled once a second; the line through
the samples says by how much it would grow in an hour. Real models and data are found by HEADCOUNT_SHARED (default
../shared).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.sweep import SHARED, classifier
from headcount import ablate_each, find_roles, importance
from headcount.roles import Sentences

PAGE = 4096


def resident() -> float:
    """Megabytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--json", help="write every sample to this file")
    options = parser.parse_args()
    model, task, _ = classifier(6)
    task = task.subset(range(options.examples))
    sentences = Sentences.of(SHARED / "data" / "ud" / "en_ewt-dev.conllu").take(options.examples)
    samples: list[tuple[float, float]] = []
    begun, rounds = time.monotonic(), 0
    threading.Thread(target=sample, args=(samples, begun, 60 * options.minutes), daemon=True).start()
    while time.monotonic() - begun < 60 * options.minutes:
        with tempfile.TemporaryDirectory() as place:
            ablate_each(model, task, run=Path(place) / "ablate", resamples=100)
            importance(model, task, run=Path(place) / "importance")
            find_roles(model, sentences, task.tokenizer, run=Path(place) / "roles")
        rounds += 1
    times, sizes = np.array([one for one in samples if one[0] > 6 * options.minutes]).T
    slope, _ = np.polyfit(times, sizes, 1)
    print(
        f"{rounds} rounds in {options.minutes:g} minutes, {len(samples)} samples; after the warm-up "
        f"{sizes.min():.0f} to {sizes.max():.0f} MB, median {np.median(sizes[: len(sizes) // 2]):.0f} MB in the first "
        f"half and {np.median(sizes[len(sizes) // 2 :]):.0f} MB in the second, {slope * 3600:+.1f} MB an hour"
    )
    if options.json:
        Path(options.json).write_text(json.dumps(samples))


def sample(samples: list[tuple[float, float]], begun: float, seconds: float) -> None:
    """Seconds since the start, and megabytes, once a second."""
    while time.monotonic() - begun < seconds:
        samples.append((time.monotonic() - begun, resident()))
        time.sleep(1)


if __name__ == "__main__":
    main()
