"""Metric against share of heads removed, for ways to choose heads.

    python -m benchmarks.pruning.heads                   the two models of the shared directory
    python -m benchmarks.pruning.heads --models DIR      and cola and mrpc in DIR, of recipes/finetune.py
    python -m benchmarks.pruning.heads --data sst2 --json sst2.json
    python -m benchmarks.pruning.heads --merge sst2.json translator.json     one table of several such files
    python -m benchmarks.pruning.heads --cost            what importance costs beside a training step

Heads are scored, and compensated for, on training data alone; every score below is on held-out data.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.pruning.data import Data, read, where
from benchmarks.pruning.judge import Difference, difference, pooled
from headcount.engine import batches_by_length, fast_products
from headcount.evaluation import evaluate
from headcount.heads import counts
from headcount.pruning import compensate
from headcount.pruning.calibration import Calibration
from headcount.pruning.search import CutSearch
from headcount.scoring import head_gradients, importance
from headcount.settings import Pruning
from headcount.structure import anatomy
from headcount.surgery import remove

SHARES = (0.7, 0.8, 0.9)
DEFAULT, MICHEL = "default", "M19"
ROWS = {
    "random": ("random", "none"),
    "per-batch gradient": ("batch", "none"),
    MICHEL: ("michel", "none"),
    "M19 + refit": ("michel", "refit"),
    "re-estimated": ("reestimated", "none"),
    "Fisher": ("fisher", "none"),
    "default without compensation": ("search", "none"),
    DEFAULT: ("search", "refit"),
}


def main() -> None:
    options = arguments()
    options.rows = {row: ROWS[row] for row in (options.rows.split(",") if options.rows else ROWS)}
    torch.set_num_threads(options.threads)
    if options.merge:
        show([one for file in options.merge for one in json.loads(Path(file).read_text())])
        return
    jobs = []
    for key in options.data.split(","):
        if where(key, options.models) is None:
            print(f"# {key} is left out: its model is to be made first, see --models")
            continue
        jobs.append(read(key, options.models, examples=options.score, limit=options.limit, seed=options.seed))
    if options.cost:
        for data in jobs:
            print(cost(data, options))
        return
    kept = ("name", "n", "base", "points", "rows", "versus")
    full = [run(data, options) for data in jobs]
    results = [{key: one[key] for key in kept if key in one} for one in full]
    show(results)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2, default=float))


def run(data: Data, options: argparse.Namespace) -> dict[str, Any]:
    """Statistics of every row at every share, (N, S) each."""
    model, score, test = data.model, data.score, data.test
    total = len(anatomy(model).heads)
    base = evaluate(model, test).of()
    tenths = [count for count in counts(total, 0.1) if 0 < count < total]
    wanted = {tenths[round(10 * share) - 1]: share for share in SHARES}
    calibration = Calibration(model, score, seed=options.seed)
    result: dict[str, Any] = {"name": data.name, "metric": test.metric, "n": len(test), "statistics": {}}
    result["base"], result["rows"] = float(test.metric.of_sums(base.sum(0))), {}
    for row, (method, how) in options.rows.items():
        started = time.process_time()
        measured: dict[float, np.ndarray] = {}
        for count, smaller in _models(model, score, method, how, tenths, calibration, options.seed):
            if count in wanted:
                measured[wanted[count]] = evaluate(smaller, test).of()
        result["statistics"][row] = measured
        result["rows"][row] = {f"{share:.0%}": float(test.metric.of_sums(s.sum(0))) for share, s in measured.items()}
        print(f"# {data.name}, {row}: {result['rows'][row]} ({time.process_time() - started:.0f} s)", flush=True)
    result["points"] = test.metric.points
    result["versus"] = (
        {name: asdict(test) for name, test in versus(result).items()}
        if {DEFAULT, MICHEL} <= set(result["rows"])
        else {}
    )
    return result


def _models(
    model: Any, score: Any, method: str, how: str, tenths: list[int], calibration: Calibration, seed: int
) -> Any:
    """(heads removed, model) for every tenth."""
    if method not in ("random", "batch"):
        settings = Pruning(heads=max(tenths), method=method, compensation=how, seed=seed)
        search = CutSearch(model, score, settings, calibration=calibration)
        yield from zip(tenths, (cut.model for cut in search.cuts(tenths)), strict=True)
        return
    scores = importance(model, score, "random", seed=seed)
    if method == "batch":
        scores = importance(model, score, "gradient", per="batch")
    for count in tenths:
        yield count, compensate(remove(model, scores.order()[:count]), model, score, how, calibration=calibration)


def cost(data: Data, options: argparse.Namespace) -> str:
    """CPU time of the gradients of all heads beside a training step's forward and backward, on the same batches."""
    model, score = data.model, data.score
    batches = [score.batch(indices) for indices in batches_by_length(score.lengths)]
    ratios = []
    for _ in range(options.repeats):
        started = time.process_time()
        head_gradients(model, score)
        middle = time.process_time()
        with fast_products():
            for batch in batches:
                score.losses(score.outputs(model, batch), batch).mean().backward()
                model.zero_grad()
        ratios.append((middle - started) / (time.process_time() - middle))
    return f"{data.name}: importance costs {np.median(ratios):.2f} of a training step (median of {len(ratios)})"


def versus(result: dict[str, Any]) -> dict[str, Difference]:
    """The default against M19's order on the same examples, in points: at each share, and their mean."""
    ours, theirs = result["statistics"][DEFAULT], result["statistics"][MICHEL]
    found = {}
    for shares in (*((share,) for share in SHARES), SHARES):
        name = f"{shares[0]:.0%}" if len(shares) == 1 else "mean"
        pair = [[each[share] for share in shares] for each in (theirs, ours)]
        found[name] = difference(pair[0], pair[1], result["metric"], result["base"], resamples=5000)
    return found


def show(results: list[dict[str, Any]]) -> None:
    print_table(results)
    if all(one["versus"] for one in results):
        print_pooled(results)


def print_table(results: list[dict[str, Any]]) -> None:
    head = [f"{one['name']} {share:.0%}" for one in results for share in SHARES]
    print(f"\n| | {' | '.join(head)} |\n|-|{'-|' * len(head)}")
    whole = [_score(one["base"], one) if share == SHARES[0] else "" for one in results for share in SHARES]
    print(f"| unpruned | {' | '.join(whole)} |")
    for row in results[0]["rows"]:
        cells = [_score(one["rows"][row][f"{share:.0%}"], one) for one in results for share in SHARES]
        print(f"| {row} | {' | '.join(cells)} |")


def _score(value: float, result: dict[str, Any]) -> str:
    return f"{value:.1f}" if result["points"] >= 1 else f"{value:.3f}"


def print_pooled(results: list[dict[str, Any]]) -> None:
    print("\nThe default against M19's order, in points (paired bootstrap, 95% interval):")
    tests = [{name: Difference(**test) for name, test in one["versus"].items()} for one in results]
    for one, found in zip(results, tests, strict=True):
        for name, test in found.items():
            print(f"  {one['name']}, {name}: {test.change:+.2f} [{test.low:+.2f} {test.high:+.2f}], p {test.p:.4f}")
    together = pooled([found["mean"] for found in tests])
    print(f"  pooled over {together.tests} data sets (Stouffer): z = {together.z:+.1f}, p {together.p:.2g}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="directory with the models cola and mrpc")
    parser.add_argument("--data", default="sst2,cola,mrpc,translator")
    parser.add_argument("--merge", nargs="+", metavar="JSON", help="print the table of these results of --json")
    parser.add_argument("--score", type=int, default=1024, help="examples that heads are scored on")
    parser.add_argument("--limit", type=int, help="evaluate on at most this many examples")
    parser.add_argument("--rows", help="only these rows of the table, with commas between them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", help="file for the results")
    return parser.parse_args()


if __name__ == "__main__":
    main()
