"""Is `--dry-run` right? Every long command is forecast, then run, and the two times are compared.

    python -m benchmarks.dry_run [--limit 200] [--threads 1]

It needs the classifier and the data of `HEADCOUNT_SHARED`. Times are of the processor, so that other work on the
machine does not matter. The forecast should be within a factor of 1.5.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

SHARED = Path(os.environ.get("HEADCOUNT_SHARED", Path(__file__).resolve().parents[2] / "shared"))
PROGRAM = "import sys; sys.argv[0] = 'headcount'; from headcount.cli import main; main()"
FACTOR = 1.5


def headcount(*words: object) -> str:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, words)], check=True, capture_output=True, text=True
    ).stdout


def commands(folder: Path, limit: int) -> dict[str, list[object]]:
    """Each long command on the classifier, with as much data as `limit` says."""
    model, data = SHARED / "models/minilm-sst2", SHARED / "data/sst2"
    dev, train = data / "dev.tsv", data / "train.tsv"
    sized = ["--limit", limit, "--out", folder / "run"]
    return {
        "evaluate": ["evaluate", model, "--data", dev, *sized],
        "ablate": ["ablate", model, "--data", dev, *sized],
        "compare": ["compare", model, model, "--data", dev, *sized],
        "importance": ["importance", model, "--data", train, *sized],
        "curve": ["curve", model, "--score-data", train, "--data", dev, *sized, "--step", "0.2"],
        "gates": ["gates", model, "--data", train, "--test", dev, "--lambda", "0.1", *sized],
    }


def _processor() -> float:
    """Seconds that the processor has spent on finished children: what others do on the machine does not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=200, help="examples of each data set")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--commands", default="", help="only these, with commas")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    chosen = [name for name in arguments.commands.split(",") if name]
    worst = 1.0
    print("| command | forecast, s | taken, s | ratio |\n|-|-|-|-|")
    for name in chosen or commands(Path(), 1):
        with tempfile.TemporaryDirectory() as folder:
            words = commands(Path(folder), arguments.limit)[name]
            forecast = json.loads(headcount(*words, "--dry-run", "--json"))["processor_seconds"]
            start = _processor()
            headcount(*words, "--json")
            took = _processor() - start
        worst = max(worst, forecast / took, took / forecast)
        print(f"| {name} | {forecast:.1f} | {took:.1f} | {forecast / took:.2f} |", flush=True)
    print(f"\nThe worst is off by a factor of {worst:.2f}; {FACTOR} was promised.")


if __name__ == "__main__":
    main()
