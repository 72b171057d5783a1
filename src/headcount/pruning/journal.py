"""What a search has found so far, kept in its run directory, so that an interrupted one goes on where it stopped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from headcount.engine import RunDirectory
from headcount.heads import Head


class Journal:
    """Chosen heads and measured statistics of a search; without a run directory nothing is kept.

    >>> journal, heads = Journal(None), [Head("encoder", 0, 0), Head("encoder", 0, 1)]
    >>> [str(head) for head in journal.choice(1, heads, lambda: heads[1:])]
    ['encoder.0.1']
    """

    def __init__(self, run: RunDirectory | None) -> None:
        self.run = run

    def choice(self, number: int, heads: Sequence[Head], choose: Callable[[], list[Head]]) -> list[Head]:
        """The first `number` heads to go, of these, as chosen before or now."""
        name = f"choice-{number:05d}"
        kept = self.run.load_shard(name) if self.run else None
        if kept is not None:
            return [heads[place] for place in kept["removed"]]
        chosen = choose()
        if self.run:
            self.run.save_shard(name, {"removed": np.array([heads.index(head) for head in chosen], np.int64)})
        return chosen

    def statistics(self, removed: Sequence[Head], measure: Callable[[], np.ndarray]) -> np.ndarray:
        """(N, S) the statistics of the model without these heads, as measured before or now."""
        names = " ".join(str(head) for head in sorted(removed))
        name = f"cut-{len(removed):05d}-{hashlib.sha256(names.encode()).hexdigest()[:16]}"
        kept = self.run.load_shard(name) if self.run else None
        if kept is not None:
            return kept["statistics"]
        measured = measure()
        if self.run:
            self.run.save_shard(name, {"statistics": np.ascontiguousarray(measured)})
        return measured
