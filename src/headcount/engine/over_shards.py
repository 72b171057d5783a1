"""`over_shards`: work on all of the data, shard by shard, keeping what is finished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headcount.engine.engines import Local, current, device_type
from headcount.engine.rundir import RunDirectory
from headcount.engine.shards import cut_shards
from headcount.engine.work import Arrays, Examples, Progress, Work


def over_shards(
    work: Work,
    model: Any,
    data: Examples,
    *,
    masks: int = 1,
    directory: RunDirectory | None = None,
    name: str = "outcomes",
    progress: Progress | None = None,
) -> Arrays:
    """The work's arrays for all examples, in their order.

    masks: how many passes over an example the work makes, for shards that take a few seconds.
    directory: where finished shards are kept, and found again; name: of these shards.
    Without a directory, and without an engine that wants shards, the work is done in one piece.
    """
    engine = current()
    if engine is None and directory is None:
        shards: Sequence[Sequence[int]] = [range(len(data))]
    else:
        shards = cut_shards(data.lengths, masks, work.tokens, model, device_type(model))
    gathered = _Gathered(work, len(data), shards)
    missing = []
    for number in range(len(shards)):
        arrays = None if directory is None else directory.load_shard(f"{name}-{number:05d}")
        if arrays is not None and work.fits(arrays, len(shards[number])) and gathered.alike(arrays):
            gathered.add(number, arrays)
        else:
            missing.append(number)
    share = len(missing) / len(shards)
    rest = None if progress is None else lambda done: progress(1 - share + share * done)
    for place, arrays in (engine or Local()).run(work, model, data, [shards[number] for number in missing], rest):
        if directory is not None:
            directory.save_shard(f"{name}-{missing[place]:05d}", arrays)
        gathered.add(missing[place], arrays)
    return gathered.all()


class _Gathered:
    """Arrays of all examples, from those of shards: the same, whichever shard is finished first."""

    def __init__(self, work: Work, examples: int, shards: Sequence[Sequence[int]]) -> None:
        self.work, self.examples, self.shards = work, examples, shards
        self.rows: Arrays = {}
        self.sums: dict[str, dict[int, np.ndarray]] = {}

    def alike(self, arrays: Arrays) -> bool:
        """Whether these have the names and shapes of those that are there already."""
        known = {**self.rows, **{name: next(iter(parts.values())) for name, parts in self.sums.items()}}
        return not known or self._shapes(arrays) == self._shapes(known)

    def _shapes(self, arrays: Arrays) -> dict[str, tuple[int, ...]]:
        return {name: array.shape if self.work.summed(name) else array.shape[1:] for name, array in arrays.items()}

    def add(self, number: int, arrays: Arrays) -> None:
        """Rows go where their examples are."""
        for name, array in arrays.items():
            if self.work.summed(name):
                self.sums.setdefault(name, {})[number] = array
            else:
                if name not in self.rows:
                    self.rows[name] = np.zeros((self.examples, *array.shape[1:]), array.dtype)
                self.rows[name][self.shards[number]] = array

    def all(self) -> Arrays:
        """Sums are taken in the order of the shards."""
        sums = {name: np.sum([parts[n] for n in sorted(parts)], axis=0) for name, parts in self.sums.items()}
        return {**self.rows, **sums}
