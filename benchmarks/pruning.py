"""Metric against share pruned, for ways to choose heads, and how often `prune --max-drop` keeps its promise.

    python -m benchmarks.pruning                      the two models of the shared directory
    python -m benchmarks.pruning --models DIR         and DIR/cola and DIR/mrpc, made by recipes/finetune_classifier.py
    python -m benchmarks.pruning --jobs jobs.json     others: a list of objects like JOBS below
    python -m benchmarks.pruning --only SST-2 --json sst2.json     one of them; several of these files make one table:
    python -m benchmarks.pruning --merge sst2.json multi30k.json
    python -m benchmarks.pruning --cost               what importance costs beside a training step

Heads are scored, and compensated for, on training data alone; every score below is on other data, on which nothing was
chosen. The promise: for each of many random halves of that data, one half chooses the largest cut within the budget,
the other tells whether the drop is within it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from headcount.anatomy import anatomy
from headcount.evaluate import evaluate
from headcount.evaluate.batches import batches_by_length
from headcount.importance import importance
from headcount.importance.gradient import head_gradients
from headcount.pruning.budget import Budget, largest_within
from headcount.pruning.calibration import Calibration
from headcount.pruning.compensate import compensate
from headcount.pruning.schedule import counts
from headcount.pruning.search import cuts
from headcount.stats import paired_bootstrap
from headcount.surgery import load, remove
from headcount.tasks import load_task

SHARED = Path(os.environ.get("HEADCOUNT_SHARED") or Path(__file__).resolve().parents[2] / "shared")
SHARES = (0.7, 0.8, 0.9)
BUDGETS, CAUTIONS = (0.5, 1.0, 2.0, 5.0), (0.0, 1.0)  # of the promises, in points and standard errors
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
JOBS = [
    {
        "name": "SST-2", "model": "models/minilm-sst2", "task": "classification",
        "score": "data/sst2/train.tsv", "data": "data/sst2/dev.tsv",
    },
    {
        "name": "CoLA", "made": "cola", "task": "classification", "metric": "matthews", "text": 3, "label": 1,
        "score": "data/cola/in_domain_train.tsv", "data": "data/cola/in_domain_dev.tsv",
    },
    {
        "name": "MRPC", "made": "mrpc", "task": "classification", "metric": "accuracy",
        "score": "data/mrpc/train.txt", "data": "data/mrpc/test.txt",
    },
    {
        "name": "Multi30k", "model": "models/multi30k-en-fr", "task": "translation",
        "score": "data/multi30k/train.en", "score_target": "data/multi30k/train.fr",
        "data": "data/multi30k/val.en", "target": "data/multi30k/val.fr",
    },
]  # fmt: skip


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


def show(results: list[dict[str, Any]]) -> None:
    print_table(results)
    if all(one["versus"] for one in results):
        print_pooled(results)
    if all("promises" in one for one in results):
        print_promises(results)


def read(job: dict[str, Any], options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """A model, the data to score on and the data to evaluate on."""
    directory = SHARED / job["model"]
    model = load(directory, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    common = {name: job.get(name) for name in ("metric", "text", "label")} | {"seed": options.seed}
    targets = [SHARED / job[name] if name in job else None for name in ("score_target", "target")]
    score = load_task(
        job["task"], SHARED / job["score"], tokenizer, model, limit=options.score, target_data=targets[0], **common
    )
    data = load_task(
        job["task"], SHARED / job["data"], tokenizer, model, limit=options.limit, target_data=targets[1], **common
    )
    return model, score, data


def run(job: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Statistics of every row at every share, (N, S) each, and of the default at every tenth."""
    model, score, data = read(job, options)
    total = len(anatomy(model).heads)
    base = evaluate(model, data).of()
    tenths = [count for count in counts(total, 0.1) if 0 < count < total]
    wanted = {tenths[round(10 * share) - 1]: share for share in SHARES}
    calibration = Calibration(model, score, seed=options.seed)
    result: dict[str, Any] = {"name": job["name"], "metric": data.metric, "n": len(data), "statistics": {}, "path": {}}
    result["base"], result["rows"] = float(data.metric.of_sums(base.sum(0))), {}
    for row, (method, how) in options.rows.items():
        started = time.process_time()
        measured: dict[float, np.ndarray] = {}
        for count, smaller in _models(model, score, method, how, tenths, calibration, options.seed):
            share = count / total
            if count in wanted or row == DEFAULT:
                statistics = evaluate(smaller, data).of()
                if row == DEFAULT:
                    result["path"][share] = statistics
                if count in wanted:
                    measured[wanted[count]] = statistics
        result["statistics"][row] = measured
        result["rows"][row] = {f"{share:.0%}": float(data.metric.of_sums(s.sum(0))) for share, s in measured.items()}
        print(f"# {job['name']}, {row}: {result['rows'][row]} ({time.process_time() - started:.0f} s)", flush=True)
    result["whole"] = base
    result["path"][0.0] = base
    result["points"] = data.metric.points
    if DEFAULT in result["rows"]:
        result["promises"] = [
            promises(result, points, options.splits, caution) for caution in CAUTIONS for points in BUDGETS
        ]
    result["versus"] = versus(result) if {DEFAULT, MICHEL} <= set(result["rows"]) else {}
    return result


def _models(
    model: Any, score: Any, method: str, how: str, tenths: list[int], calibration: Calibration, seed: int
) -> Any:
    """(heads gone, model) for every tenth."""
    if method not in ("random", "batch"):
        cut_to = cuts(model, score, tenths, method=method, how=how, calibration=calibration)
        yield from zip(tenths, (cut.model for cut in cut_to), strict=True)
        return
    scores = importance(model, score, "random", seed=seed)
    if method == "batch":
        scores = importance(model, score, "gradient", per="batch")
    for count in tenths:
        yield count, compensate(remove(model, scores.order()[:count]), model, score, how, calibration=calibration)


def versus(result: dict[str, Any]) -> dict[str, Any]:
    """The default against M19's order on the same examples, in points: at each share, and their mean."""
    metric, ours, theirs = result["metric"], result["statistics"][DEFAULT], result["statistics"][MICHEL]
    sign = (1.0 if metric.higher_is_better else -1.0) / (metric.points * (result["base"] if metric.relative else 1.0))
    width = ours[SHARES[0]].shape[1]

    def mean_points(sums: np.ndarray) -> np.ndarray:
        parts = [metric.of_sums(sums[..., k * width : (k + 1) * width]) for k in range(sums.shape[-1] // width)]
        return sign * np.mean(parts, axis=0)

    found = {}
    for shares in (*((share,) for share in SHARES), SHARES):
        base, other = (np.concatenate([each[share] for share in shares], axis=1) for each in (theirs, ours))
        test = paired_bootstrap(base, other[None], mean_points, resamples=5000)
        name = f"{shares[0]:.0%}" if len(shares) == 1 else "mean"
        spread = float(test.high[0] - test.low[0]) / 3.92
        found[name] = {
            "change": float(test.change[0]), "low": float(test.low[0]), "high": float(test.high[0]),
            "p": float(test.p[0]), "error": spread,
        }  # fmt: skip
    return found


def promises(result: dict[str, Any], points: float, splits: int, caution: float) -> dict[str, float]:
    """Of so many random halves: how often the other half's drop was within the budget, and shown to be beyond it."""
    metric = result["metric"]
    shares = sorted(share for share in result["path"] if share > 0)
    kept = broken = chosen_any = 0
    gone = []
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(result["n"])
        for choose, prove in ((order[::2], order[1::2]), (order[1::2], order[::2])):
            base = result["whole"][choose]
            budget = Budget.of(metric, points, float(metric.of_sums(base.sum(0))))
            cut = np.stack([result["path"][share][choose] for share in shares])
            test = paired_bootstrap(base, cut, metric.of_sums, resamples=200)
            drops = -test.change if metric.higher_is_better else test.change
            errors = ((test.high - test.low) / 3.92).tolist()
            best = largest_within(drops.tolist(), errors, budget.allowed, caution)
            if best is None:  # nothing is cut, and nothing promised
                continue
            chosen_any += 1
            gone.append(shares[best])
            base, after = result["whole"][prove], result["path"][shares[best]][prove]
            proof = Budget.of(metric, points, float(metric.of_sums(base.sum(0))))
            tested = paired_bootstrap(base, after[None], metric.of_sums, resamples=500)
            kept += proof.drop(float(metric.of_sums(after.sum(0)))) <= proof.allowed
            worst = -tested.high[0] if metric.higher_is_better else tested.low[0]
            broken += worst > proof.allowed
    return {
        "points": points, "caution": caution, "runs": 2 * splits, "cut": chosen_any, "kept": kept,
        "shown_broken": broken, "mean_share": float(np.mean(gone)) if gone else 0.0,
    }  # fmt: skip


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
    for one in results:
        for name, test in one["versus"].items():
            print(
                f"  {one['name']}, {name}: {test['change']:+.2f} [{test['low']:+.2f} {test['high']:+.2f}], "
                f"p {test['p']:.4f}"
            )
    means = [one["versus"]["mean"] for one in results]
    z = sum(test["change"] for test in means) / max(1e-12, sum(test["error"] ** 2 for test in means) ** 0.5)
    print(f"  pooled over {len(means)} data sets and {len(SHARES)} shares: z = {z:+.1f}")


def print_promises(results: list[dict[str, Any]]) -> None:
    print("\nPromises of --max-drop, over random splits, either half proving:")
    for one in results:
        for each in one["promises"]:
            print(
                f"  {one['name']}, {each['points']:g} points, caution {each['caution']:g}: {each['cut']} of "
                f"{each['runs']} runs cut ({each['mean_share']:.0%} of the heads on average); "
                f"held-out drop within the budget in {each['kept']}, shown to be beyond it in {each['shown_broken']}"
            )


def cost(job: dict[str, Any], options: argparse.Namespace) -> str:
    """CPU time of the gradients of all heads beside a training step's forward and backward, on the same batches."""
    model, score, _ = read(job, options)
    batches = [score.batch(indices) for indices in batches_by_length(score.lengths)]
    ratios = []
    for _ in range(options.repeats):
        started = time.process_time()
        head_gradients(model, score)
        middle = time.process_time()
        for batch in batches:
            score.losses(score.outputs(model, batch), batch).mean().backward()
            model.zero_grad()
        ratios.append((middle - started) / (time.process_time() - middle))
    return f"{job['name']}: importance costs {np.median(ratios):.2f} of a training step (median of {len(ratios)})"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", help="JSON file; paths in it are relative to the shared directory")
    parser.add_argument("--models", help="directory with the models cola and mrpc")
    parser.add_argument("--only", help="the job of this name alone")
    parser.add_argument("--merge", nargs="+", metavar="JSON", help="print the table of these results of --json")
    parser.add_argument("--score", type=int, default=1024, help="examples that heads are scored on")
    parser.add_argument("--limit", type=int, help="only so many examples to evaluate on")
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
