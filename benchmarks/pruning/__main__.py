"""Metric against share pruned, for ways to choose heads, and how often `prune --max-drop` keeps its promise.

    python -m benchmarks.pruning                      the two models of the shared directory
    python -m benchmarks.pruning --models DIR         and DIR/cola and DIR/mrpc, made by recipes/finetune_classifier.py
    python -m benchmarks.pruning --jobs jobs.json     others: a list of objects like those in jobs.py
    python -m benchmarks.pruning --only SST-2 --json sst2.json     one of them; several of these files make one table:
    python -m benchmarks.pruning --merge sst2.json multi30k.json
    python -m benchmarks.pruning --cost               what importance costs beside a training step

Heads are scored, and compensated for, on training data alone; every score below is on held-out data. The promise: that
data is split in half at random, many times; one half selects the largest cut within the budget, the other tests whether
the drop is within it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from benchmarks.pruning.jobs import JOBS
from benchmarks.pruning.measure import ROWS, cost, run
from benchmarks.pruning.show import show


def main() -> None:
    options = arguments()
    options.rows = {row: ROWS[row] for row in (options.rows.split(",") if options.rows else ROWS)}
    torch.set_num_threads(options.threads)
    if options.merge:
        show([one for file in options.merge for one in json.loads(Path(file).read_text())])
        return
    jobs = json.loads(Path(options.jobs).read_text()) if options.jobs else JOBS
    jobs = [job for job in jobs if options.only in (None, job["name"])]
    for job in jobs:
        if "made" in job and options.models is not None:
            job["model"] = Path(options.models, job["made"]).absolute()
        elif "made" in job:
            print(f"# {job['name']} is left out: its model is to be made first, see --models")
    jobs = [job for job in jobs if "model" in job]
    if options.cost:
        for job in jobs:
            print(cost(job, options))
        return
    results = [run(job, options) for job in jobs]
    show(results)
    if options.statistics:
        arrays = {f"{one['name']}/{share:g}": values for one in results for share, values in one["path"].items()}
        np.savez_compressed(options.statistics, **arrays)
    if options.json:
        kept = ("name", "n", "base", "points", "rows", "versus", "promises")
        saved = [{key: one[key] for key in kept if key in one} for one in results]
        Path(options.json).write_text(json.dumps(saved, indent=2, default=float))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", help="JSON file; paths in it are relative to the shared directory")
    parser.add_argument("--models", help="directory with the models cola and mrpc")
    parser.add_argument("--only", help="the job of this name alone")
    parser.add_argument("--merge", nargs="+", metavar="JSON", help="print the table of these results of --json")
    parser.add_argument("--score", type=int, default=1024, help="examples that heads are scored on")
    parser.add_argument("--limit", type=int, help="evaluate on at most this many examples")
    parser.add_argument("--rows", help="only these rows of the table, with commas between them")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--statistics", help="npz file for the default's statistics of every example")
    return parser.parse_args()


if __name__ == "__main__":
    main()
