"""`Outcomes`: what every example did under every mask, from which all scores and tests are arithmetic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headcount.errors import HeadcountError, counted
from headcount.heads import Head
from headcount.tasks import Metric

Mask = frozenset[Head]


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Sufficient statistics per mask and example: `values[mask, example, statistic]`.

    `masks` are the sets of heads that were off, in the order asked for; the empty set is the whole model. `near_ties`
    counts decisions that were too close to call (`evaluation/near_ties.py`).
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
