"""What each mask changes, tested: outcomes once, all statistics as arithmetic on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headcount.evaluate import Mask, Outcomes
from headcount.stats import corrected, mcnemar_exact, paired_bootstrap, paired_t


@dataclass(frozen=True)
class Effects:
    """What each mask changes: masked minus whole model, (M,) arrays, tested on the same examples.

    `p` is the exact McNemar test for accuracy and the paired bootstrap for every other metric; `p_holm` and `p_bh` are
    corrected for testing many heads. `p_t` is M19's paired t-test (accuracy only), for comparison.
    """

    score: np.ndarray
    change: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray
    p_holm: np.ndarray
    p_bh: np.ndarray
    p_t: np.ndarray | None
    test: str
    resamples: int


def effects_of(outcomes: Outcomes, masks: Sequence[Mask], resamples: int | None, alpha: float, seed: int) -> Effects:
    """Test masks against the whole model."""
    base = outcomes.of()
    masked = np.stack([outcomes.of(mask) for mask in masks]) if masks else np.zeros((0, *base.shape))
    tested = paired_bootstrap(base, masked, outcomes.metric.of_sums, resamples=resamples, alpha=alpha, seed=seed)
    p, p_t, test = tested.p, None, "paired bootstrap"
    if outcomes.metric.name == "accuracy" and bool((base[:, 0] == 1).all()):  # one right or wrong per example
        p, p_t, test = mcnemar_exact(base[:, 1], masked[..., 1]), paired_t(base[:, 1], masked[..., 1]), "exact McNemar"
    return Effects(
        score=np.asarray(outcomes.metric.of_sums(masked.sum(axis=1))),
        change=tested.change,
        low=tested.low,
        high=tested.high,
        p=p,
        p_holm=corrected(p, "holm"),
        p_bh=corrected(p, "bh"),
        p_t=p_t,
        test=test,
        resamples=tested.resamples,
    )


def measured(outcomes: Outcomes) -> dict[str, Any]:
    """What every kind of ablation says first."""
    return {"metric": outcomes.metric.name, "n": outcomes.values.shape[1], "near_ties": outcomes.near_ties}
