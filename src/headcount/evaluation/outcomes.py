"""`Outcomes`: what every example did under every mask, from which all scores and tests are arithmetic.

A decision whose two best candidates lie within `TIE` is a near tie: the order of summation may decide it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.errors import HeadcountError, counted
from headcount.heads import Head
from headcount.reporting import Shown
from headcount.stats import change_bounds, interval
from headcount.tasks import Metric

Mask = frozenset[Head]
FEW = 50  # masks that are shown with intervals, which take a while for metrics that need a bootstrap
TIE = 1e-4  # logits closer than this


@dataclass(frozen=True, eq=False)
class Outcomes(Shown):
    """Sufficient statistics per mask and example: `values[mask, example, statistic]`.

    `masks` are the sets of heads that were off, in the order asked for; the empty set is the whole model. `near_ties`
    counts decisions that were too close to call (`evaluation/outcomes.py`).
    """

    masks: tuple[Mask, ...]
    values: np.ndarray  # (M, N, S) float64
    metric: Metric
    signature: dict[str, Any] = field(default_factory=dict)
    near_ties: int = 0

    def __repr__(self) -> str:
        whole = f", {self.metric.written(self.score())} whole" if frozenset() in self.masks else ""
        examples = counted(self.values.shape[1], "example")
        return f"<{self.metric.name} of {examples} under {counted(len(self.masks), 'mask')}{whole}>"

    def scores(self) -> np.ndarray:
        """The metric under every mask: (M,)"""
        return self.metric.of(self.values)

    def score(self, off: Iterable[Head] = ()) -> float:
        """The metric under one mask; without one, that of the whole model."""
        return float(self.metric.of(self.of(off)))

    def of(self, off: Iterable[Head] = ()) -> np.ndarray:
        """The statistics of every example under one mask: (N, S)"""
        mask = frozenset(off)
        if mask not in self.masks:
            raise HeadcountError(f"no outcomes for {', '.join(map(str, sorted(mask))) or 'the whole model'}")
        return self.values[self.masks.index(mask)]

    def to_json(self) -> dict[str, Any]:
        """The score under every mask and its change; with 95% intervals if there are at most 50 masks."""
        scores, whole = self.scores(), self.masks.index(frozenset()) if frozenset() in self.masks else None
        rows: list[dict[str, Any]] = [
            {"off": sorted(map(str, mask)), "score": float(score)}
            for mask, score in zip(self.masks, scores, strict=True)
        ]
        if len(rows) <= FEW:
            for row, values in zip(rows, self.values, strict=True):
                row["low"], row["high"] = interval(values, self.metric)
        if whole is not None:
            for place, row in enumerate(rows):
                row["change"] = float(scores[place] - scores[whole])
                if len(rows) <= FEW and row["off"]:  # without a mask it is the same model, on any data
                    low, high = change_bounds(self.values[whole], self.values[place][None], self.metric)
                    row["change_low"], row["change_high"] = float(low[0]), float(high[0])
        base: dict[str, Any] = (
            {} if whole is None else {key: rows[whole][key] for key in ("score", "low", "high") if key in rows[whole]}
        )
        facts = {**self.metric.facts(), "n": self.values.shape[1], "near_ties": self.near_ties}
        return {**facts, **base, "masks": rows, "signature": self.signature}


def best_candidate(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The best candidate, and whether it is a near tie: (N, V) to (N,), (N,)

    >>> best, tied = best_candidate(torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.99999, 0.0]]))
    >>> best.tolist(), tied.tolist()
    ([1, 0], [False, True])
    """
    top, best = logits.max(dim=-1)
    second = logits.scatter(-1, best[..., None], -torch.inf).amax(dim=-1)
    return best, top - second < TIE


def tied_classes(outputs: Tensor) -> Tensor:
    """Which examples' two best classes are a near tie: (B,); none where an output is not one choice.

    >>> tied_classes(torch.tensor([[0.2, 0.7], [0.5, 0.5]])).tolist()
    [False, True]
    """
    if outputs.ndim != 2 or outputs.shape[-1] < 2:
        return torch.zeros(len(outputs), dtype=torch.bool)
    return best_candidate(outputs.float())[1]
