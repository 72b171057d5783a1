"""The checkpoints of a training run beside each other."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from headcount.dynamics.snapshot import Snapshot
from headcount.stats import correlation
from headcount.tasks import Metric

SETTLED = 0.9  # Spearman r with the last checkpoint from which on the order counts as settled


@dataclass(frozen=True, eq=False)
class Dynamics:
    """The checkpoints of a training run in order, and when the order of their heads settled."""

    checkpoints: tuple[Snapshot, ...]
    metric: Metric
    settled_from: float = SETTLED

    @property
    def with_next(self) -> list[float]:
        """Spearman r of the heads' importance between each checkpoint and the next."""
        pairs = zip(self.checkpoints, self.checkpoints[1:], strict=False)
        return [_rank_correlation(one, other) for one, other in pairs]

    @property
    def with_last(self) -> list[float]:
        """Spearman r of the heads' importance between each checkpoint and the last."""
        return [_rank_correlation(one, self.checkpoints[-1]) for one in self.checkpoints[:-1]]

    @property
    def settled(self) -> str | None:
        """The first checkpoint from which on r with the last is `settled_from` or more, if there is one."""
        found = None
        for one, r in reversed(list(zip(self.checkpoints, self.with_last, strict=False))):
            if not r >= self.settled_from:
                break
            found = one.name
        return found

    def in_words(self) -> str:
        """When the order settled."""
        if len(self.checkpoints) < 2:
            return "One checkpoint: there is no other order to compare with."
        last = self.checkpoints[-1].name
        if self.settled is None:
            return f"The order of heads is still moving before {last}: Spearman r {self.with_last[-1]:.2f} with it."
        return (
            f"The order of heads has settled at {self.settled}: Spearman r {self.settled_from:g} or more with {last}."
        )

    def to_json(self) -> dict[str, Any]:
        """What `headcount track --json` says."""
        return {
            "checkpoints": [asdict(one) for one in self.checkpoints],
            "with_next": self.with_next,
            "with_last": self.with_last,
            "settled": self.settled,
            "settled_from": self.settled_from,
            "in_words": self.in_words(),
        }


def _rank_correlation(one: Snapshot, other: Snapshot) -> float:
    values = [[shot.importance[head] for head in one.importance] for shot in (one, other)]
    return correlation(*map(np.array, values)).spearman
