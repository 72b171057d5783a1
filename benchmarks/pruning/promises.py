"""How often `prune --max-drop` keeps its promise, on independent draws from bootstrap populations.

    python -m benchmarks.pruning.promises --data sst2,translator --statistics DIR
    python -m benchmarks.pruning.promises --models MODELS --data cola,mrpc --statistics DIR

Heads are chosen by the default search on training data, and every cut of its path is measured on held-out data. These
statistics of every example, kept in DIR, are then a population whose true drops are known. From it, many times, a
selection sample and a test sample are drawn with replacement: the first chooses the largest cut as `prune` does, the
second gives the verdict. The promise is kept if the true drop of the chosen cut is within the budget.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.pruning.data import JOBS, read, where
from headcount.evaluation import evaluate
from headcount.heads import counts
from headcount.pruning.cut_size import Budget
from headcount.pruning.pipeline import unshowable
from headcount.pruning.search import CutSearch
from headcount.settings import Pruning
from headcount.stats import at_most
from headcount.structure import anatomy
from headcount.tasks import Metric
from headcount.tasks.metrics import CLASSIFICATION, LANGUAGE, TRANSLATION

METRICS = {**CLASSIFICATION, **LANGUAGE, **TRANSLATION}
BUDGETS = (0.5, 1.0, 2.0, 5.0)  # in points


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    rows = []
    for key in options.data.split(","):
        path, metric = path_of(key, options), METRICS[options.metric or JOBS[key].metric or default_metric(key)]
        for points in BUDGETS:
            rows.append({"name": JOBS[key].name, "metric": metric.name, **promise(path, metric, points, options)})
            print(row_of(rows[-1]), flush=True)
    print(table(rows))


def default_metric(key: str) -> str:
    return {"classification": "accuracy", "translation": "bleu"}[JOBS[key].task]


def path_of(key: str, options: argparse.Namespace) -> dict[float, np.ndarray]:
    """Statistics (N, S) of every example, by share of heads removed: as kept, or measured now and kept cut by cut."""
    file = options.statistics / f"{key}{f'-{options.metric}' if options.metric else ''}.npz"
    found = {} if not file.exists() else {float(name): array for name, array in np.load(file).items()}
    if found:
        return found
    if where(key, options.models) is None:
        raise SystemExit(f"there is no model for {key}: recipes/finetune.py makes it")
    data = read(key, options.models, examples=options.score, limit=options.limit, metric=options.metric)
    total = len(anatomy(data.model).heads)
    sizes = [size for size in counts(total, options.step)[1:] if size <= options.most * total]
    search = CutSearch(data.model, data.score, Pruning(heads=max(sizes)))
    found[0.0] = evaluate(data.model, data.test).of()
    for cut in search.cuts(sizes):
        found[len(cut.removed) / total] = evaluate(cut.model, data.test).of()
        print(f"# {key}: {len(cut.removed)} of {total} heads removed", flush=True)
    options.statistics.mkdir(parents=True, exist_ok=True)
    with open(file, "wb") as opened:
        np.savez_compressed(opened, **{str(share): array for share, array in found.items()})
    return found


def promise(
    path: dict[float, np.ndarray], metric: Metric, points: float, options: argparse.Namespace
) -> dict[str, Any]:
    """How often a cut was chosen, its share of the heads, how often the promise was kept, and the verdict "shown"."""
    shares = sorted(share for share in path if share > 0)
    population = path[0.0]
    whole = Budget.of(metric, points, float(metric.of_sums(population.sum(0))))
    drops = {share: whole.drop(float(metric.of_sums(path[share].sum(0)))) for share in shares}
    rng, n = np.random.default_rng(options.seed), len(population)
    removed, kept, shown, why = [], 0, 0, ""
    for _ in range(options.draws):
        select, test = rng.integers(n, size=(2, n))
        base = population[select]
        budget = Budget.of(metric, points, float(metric.of_sums(base.sum(0))))
        why = unshowable(budget, metric, base, options.confidence, "selection")
        best = None
        for share in [] if why else shares:
            if not budget.test(metric, base, path[share][select], options.confidence).shown:
                break
            best = share
        if best is None:
            continue
        removed.append(best)
        kept += at_most(drops[best], whole.allowed)
        limit = Budget.of(metric, points, float(metric.of_sums(population[test].sum(0))))
        shown += limit.test(metric, population[test], path[best][test]).shown
    mean = float(np.mean(removed)) if removed else 0.0
    return {
        "points": points, "n": n, "draws": options.draws, "cut": len(removed), "share": mean, "kept": kept,
        "shown": shown, "why": why,
    }  # fmt: skip


def row_of(one: dict[str, Any]) -> str:
    """A row of the table: what was cut and kept, or that nothing was cut and why."""
    lead = f"| {one['name']} ({one['metric']}, {one['n']}) | {one['points']:g} | {one['cut']} of {one['draws']} |"
    if not one["cut"]:
        return f"{lead} | {one['why'] or 'no cut is shown to be within the budget'} | |"
    return f"{lead} {one['share']:.0%} | {one['kept'] / one['cut']:.0%} | {one['shown'] / one['cut']:.0%} |"


def table(rows: list[dict[str, Any]]) -> str:
    head = "| data (metric, examples) | `--max-drop` | cut | heads removed, mean | promise kept | verdict: shown |"
    return "\n".join([head, "|-|-|-|-|-|-|", *map(row_of, rows)])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="directory with the models cola and mrpc")
    parser.add_argument("--data", default="sst2,cola,mrpc,translator")
    parser.add_argument("--metric", help="instead of each data set's own")
    parser.add_argument("--statistics", type=Path, required=True, help="directory for the statistics of every example")
    parser.add_argument("--score", type=int, default=1024, help="examples that heads are scored on")
    parser.add_argument("--limit", type=int, help="at most this many held-out examples")
    parser.add_argument("--step", type=float, default=0.05, help="share of the heads that each cut removes more")
    parser.add_argument("--most", type=float, default=0.95, help="share of the heads in the largest cut")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
