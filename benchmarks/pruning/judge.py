"""From statistics to judgements: the default against M19's order, and promises kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from headcount.pruning.cut_size import Budget, largest_within
from headcount.stats.bootstrap import paired_bootstrap

SHARES = (0.7, 0.8, 0.9)
BUDGETS, CAUTIONS = (0.5, 1.0, 2.0, 5.0), (0.0, 1.0)  # of the promises, in points and standard errors
DEFAULT, MICHEL = "default", "M19"


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
    """Over random splits: how often the other half's drop was within the budget, and shown to be beyond it."""
    metric = result["metric"]
    shares = sorted(share for share in result["path"] if share > 0)
    kept = broken = chosen_any = 0
    removed = []
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(result["n"])
        for select, held_out in ((order[::2], order[1::2]), (order[1::2], order[::2])):
            base = result["whole"][select]
            budget = Budget.of(metric, points, float(metric.of_sums(base.sum(0))))
            cut = np.stack([result["path"][share][select] for share in shares])
            test = paired_bootstrap(base, cut, metric.of_sums, resamples=200)
            drops = -test.change if metric.higher_is_better else test.change
            errors = ((test.high - test.low) / 3.92).tolist()
            best = largest_within(drops.tolist(), errors, budget.allowed, caution)
            if best is None:  # nothing is cut, and nothing promised
                continue
            chosen_any += 1
            removed.append(shares[best])
            base, after = result["whole"][held_out], result["path"][shares[best]][held_out]
            limit = Budget.of(metric, points, float(metric.of_sums(base.sum(0))))
            tested = paired_bootstrap(base, after[None], metric.of_sums, resamples=500)
            kept += int(limit.drop(float(metric.of_sums(after.sum(0)))) <= limit.allowed)
            worst = -tested.high[0] if metric.higher_is_better else tested.low[0]
            broken += int(worst > limit.allowed)
    return {
        "points": points, "caution": caution, "runs": 2 * splits, "cut": chosen_any, "kept": kept,
        "shown_broken": broken, "mean_share": float(np.mean(removed)) if removed else 0.0,
    }  # fmt: skip
