"""Statistics of every example, for every way to choose heads and every share of them that is removed."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from benchmarks.pruning.jobs import read
from benchmarks.pruning.judge import BUDGETS, CAUTIONS, DEFAULT, MICHEL, SHARES, promises, versus
from headcount.engine.batches import batches_by_length
from headcount.evaluation.sweep import evaluate
from headcount.pruning.calibration import Calibration
from headcount.pruning.compensation import compensate
from headcount.pruning.search import CutSearch
from headcount.pruning.selection import counts
from headcount.pruning.settings import Pruning
from headcount.scoring.gradient import head_gradients
from headcount.scoring.methods import importance
from headcount.structure import anatomy
from headcount.surgery import remove

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
