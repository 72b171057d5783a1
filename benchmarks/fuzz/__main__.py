"""Mutated files for every reader: no traceback, no hang, no code run, nothing touched outside the given directory.

    python -m benchmarks.fuzz                         # 100,000 inputs, shared out over the readers
    python -m benchmarks.fuzz --only config --inputs 5000 --seed 7
    python -m benchmarks.fuzz --only config --again 1234 --keep failures   # one input again, its files kept

An input passes if the reader returns or raises a HeadcountError of one sentence. What fails is printed by its number,
from which, with the same seed, the input is made again; with --keep its files are kept.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

os.environ.update(HF_DATASETS_DISABLE_PROGRESS_BARS="1", TRANSFORMERS_VERBOSITY="error", TOKENIZERS_PARALLELISM="false")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one reader, by its name")
    parser.add_argument("--again", type=int, help="only the input of this number")
    parser.add_argument("--keep", type=Path, help="directory for the files of inputs that fail")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headcount-fuzz-") as root:
        os.environ.update(HF_HOME=f"{root}/given-cache", HF_DATASETS_CACHE=f"{root}/given/.cache")
        return fuzz(Path(root), options)


def fuzz(root: Path, options: argparse.Namespace) -> int:
    from transformers.utils import logging

    from benchmarks.fuzz import seeds
    from benchmarks.fuzz.readers import readers
    from benchmarks.fuzz.worker import Place, run

    logging.disable_progress_bar()
    every = [reader for reader in readers() if options.only in (None, reader.name)]
    if not every:
        sys.exit(f"there is no reader {options.only!r}; there are {', '.join(reader.name for reader in readers())}")
    place, shares = Place(root), sum(reader.share for reader in every)
    place.plant(seeds.secrets())
    total, seconds, failures = 0, 0.0, 0
    for reader in every:
        first = options.again or 0
        inputs = 1 if options.again is not None else max(1, -int(-options.inputs * reader.share // shares))
        report = run(reader, place, inputs, options.seed, first)
        bad = {failure["number"] for failure in report.failures}
        print(f"{reader.name:12} {inputs:7,} inputs {report.seconds:7.1f} s {len(bad):5} fail", flush=True)
        for kind, count in Counter(map(_kind, report.failures)).most_common():
            example = next(failure for failure in report.failures if _kind(failure) == kind)
            print(f"    {count} x {example['why']} (number {example['number']}, {example['files']})", flush=True)
            if options.keep:
                place.lay(reader, options.seed, example["number"])
                kept = options.keep / f"{reader.name}-{options.seed}-{example['number']}"
                shutil.copytree(place.given, kept, symlinks=True, dirs_exist_ok=True)
        total, seconds, failures = total + inputs, seconds + report.seconds, failures + len(bad)
    print(f"{'all':12} {total:7,} inputs {seconds:7.1f} s {failures:5} fail")
    return int(failures > 0)


def _kind(failure: dict[str, Any]) -> str:
    """Failures of one kind differ in what they quote only."""
    return str(failure["why"]).split(": ")[0]


if __name__ == "__main__":
    sys.exit(main())
