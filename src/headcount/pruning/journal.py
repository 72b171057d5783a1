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
        places = None if kept is None else kept.get("removed")
        if places is not None and _is_choice(places, number, len(heads)):
            return [heads[place] for place in places]
        chosen = choose()
        if self.run:
            self.run.save_shard(name, {"removed": np.array([heads.index(head) for head in chosen], np.int64)})
        return chosen

    def statistics(self, removed: Sequence[Head], examples: int, measure: Callable[[], np.ndarray]) -> np.ndarray:
        """(N, S) the statistics of the model without these heads, as measured before or now."""
        names = " ".join(str(head) for head in sorted(removed))
        name = f"cut-{len(removed):05d}-{hashlib.sha256(names.encode()).hexdigest()[:16]}"
        kept = self.run.load_shard(name) if self.run else None
        found = None if kept is None else kept.get("statistics")
        if found is not None and found.ndim == 2 and len(found) == examples and np.isfinite(found).all():
            return found
        measured = measure()
        if self.run:
            self.run.save_shard(name, {"statistics": np.ascontiguousarray(measured)})
        return measured


def _is_choice(places: np.ndarray, number: int, heads: int) -> bool:
    """Whether a shard holds a choice of at most `number` of so many heads."""
    if places.ndim != 1 or places.dtype != np.int64 or len(places) > number:
        return False
    return len(set(places.tolist())) == len(places) and all(0 <= place < heads for place in places)
