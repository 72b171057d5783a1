"""Ways to choose units, compared by how far the cuts' predictions are from the whole model's.

    python -m benchmarks.pruning.choices --models DIR --out RESULTS --data sst2,cola,snli --speedups 2.4,3 \\
        --methods ours,surgeon,joint,reconstruction --steps 0.05,0.1 --scored 1024

Every search calibrates on the same training examples, and scores units on the first of them (`--scored`). Its cuts are
judged on other training examples, by the Kullback-Leibler divergence of their predictions from the whole model's: it
needs no labels, tells methods apart that score alike, and leaves the test data out of the choice. Every search is kept
in RESULTS; the same command resumes, and prints the table of all that are there, each beside the first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recipes.asking import counts

from benchmarks.pruning.__main__ import names, ratios
from benchmarks.pruning.data import JOBS, SHARED, Data, read
from benchmarks.pruning.judge import difference, pooled
from benchmarks.pruning.methods import BASELINES, METHODS, maker
from headcount.evaluation import evaluate
from headcount.files import read_object, to_json, write_whole
from headcount.tasks import Task, load_task, unlabeled
from headcount.tasks.metrics import UNLABELED

COLUMNS = (
    *("data", "fewer FLOPs", "method", "step", "scored", "divergence", "beside the first, %", "agreement"),
    "processor time / first",
)
DIVERGENCE, AGREEMENT = UNLABELED["divergence"], UNLABELED["agreement"]


def main(args: Sequence[str] | None = None) -> None:
    options = arguments(args)
    torch.set_num_threads(1)
    versus: dict[tuple[str, float, int, float], list[Any]] = {}
    print(f"| {' | '.join(COLUMNS)} |\n{'|-' * len(COLUMNS)}|")
    for key in options.data:
        data = read(key, options.models, examples=options.examples)
        judged = unlabeled(others(data, options.judged), data.model, "divergence")
        base: dict[float, dict[str, Any]] = {}
        for method, step, scored in product(options.methods, options.steps, options.scored):
            for found in searched(data, judged, method, step, scored, options):
                first = base.setdefault(found["asked"], found)
                change = against(first, found)
                if change is not None:
                    versus.setdefault((method, step, scored, found["asked"]), []).append(change)
                print(f"| {data.name} | {' | '.join(row(found, first, change))} |", flush=True)
    for (method, step, scored, ratio), some in versus.items():
        together, how = pooled(some), f"{method}, step {step:g}, {scored:,} scored"
        print(f"{how}, {ratio:g} times: pooled z {together.z:+.1f} ({together.tests}), + is better")


def others(data: Data, most: int) -> Task:
    """Training examples that are neither scored nor calibrated on."""
    job = JOBS[data.key]
    targets = job.targets[0] and SHARED / job.targets[0]
    columns = {"text": job.text, "label": job.label, "metric": job.metric, "target_data": targets}
    every = load_task(job.task, SHARED / job.score, data.score.tokenizer, data.model, **columns)  # type: ignore[attr-defined]
    known = {*data.score.keys(), *data.select.keys()}
    free = [place for place, key in enumerate(every.keys()) if key not in known]
    return every.subset(np.random.default_rng(0).permutation(free)[:most].tolist())


def searched(
    data: Data, judged: Any, method: str, step: float, scored: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """One search for all ratios, as kept or made now: a dict for each."""
    found, make = [], None
    for ratio in options.speedups:
        file = options.out / data.key / f"{method}-{step:g}-{scored}-{ratio:g}.json"
        kept = read_object(file)
        if kept is None:
            started = time.process_time()
            make = make or maker(method, data, options.out, step=step, score_examples=scored)
            smaller = make(ratio)
            seconds = time.process_time() - started + (found[-1]["seconds"] if found else 0.0)
            statistics = evaluate(smaller, judged).of()
            kept = {"method": method, "step": step, "scored": scored, "asked": ratio, "seconds": seconds}
            kept |= {"statistics": statistics.tolist()}
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, to_json(kept).encode())
        found.append(kept)
    return found


def against(first: dict[str, Any], found: dict[str, Any]) -> Any:
    """How much nearer a cut is than the first one, in points; None for the first itself."""
    if first is found:
        return None
    theirs, ours = (np.array(one["statistics"]) for one in (first, found))
    return difference([theirs], [ours], DIVERGENCE, float(DIVERGENCE.of(theirs)))


def row(found: dict[str, Any], first: dict[str, Any], change: Any) -> list[str]:
    statistics = np.array(found["statistics"])
    said = ""
    if change is not None:
        percent = -100 * DIVERGENCE.points / float(DIVERGENCE.of(np.array(first["statistics"])))
        said = "{:+.0f} [{:+.0f} {:+.0f}]".format(*(percent * one for one in (change.change, change.high, change.low)))
    return [
        *(f"{found['asked']:g}", found["method"], f"{found['step']:g}", f"{found['scored']:,}"),
        *(f"{DIVERGENCE.of(statistics):.4f}", said, f"{AGREEMENT.of(statistics):.1%}"),
        f"{found['seconds'] / first['seconds']:.2f}",
    ]


def arguments(args: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="directory with the models mrpc, cola and snli")
    parser.add_argument("--out", type=Path, required=True, help="directory of the results")
    parser.add_argument("--data", type=names(JOBS), default=["sst2", "cola", "snli"], help=",".join(JOBS))
    own = [name for name in METHODS if name not in BASELINES]
    usual = ["ours", "surgeon", "joint", "reconstruction"]
    parser.add_argument("--methods", type=names(own), default=usual, help=",".join(own))
    parser.add_argument("--speedups", type=ratios, default=[2.4, 3], help="how many times fewer FLOPs")
    parser.add_argument("--steps", type=lambda text: list(map(float, text.split(","))), default=[0.05])
    parser.add_argument("--scored", type=counts, default=[1024], help="training examples to score units on")
    parser.add_argument("--examples", type=int, default=2048, help="training examples to calibrate on")
    parser.add_argument("--judged", type=int, default=2000, help="training examples to judge the cuts on")
    return parser.parse_args(args)


if __name__ == "__main__":
    main()
