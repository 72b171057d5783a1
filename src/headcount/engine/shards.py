"""Cut a task's examples into shards that take a few seconds each, along the borders of its batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headcount.engine.batches import TOKENS, batches_by_length
from headcount.engine.work import Arrays, Examples, Local, Progress, Work, current, device_type
from headcount.runs import RunDirectory

WORK = 8e11  # floating point operations in a shard: seconds on two cores; a batch is the least
ELSEWHERE = 50  # times as much on a GPU


def cut_shards(
    lengths: Sequence[int], masks: int, tokens: int = TOKENS, model: Any = None, device: str = "cpu"
) -> list[list[int]]:
    """Shards of whole batches, so that an example is in the same batch however the work is cut.

    masks: how often the model runs on an example. device: the type of the one that it runs on.

    >>> cut_shards([5] * 6, masks=100_000, tokens=10)
    [[0, 1], [2, 3], [4, 5]]
    """
    shards: list[list[int]] = []
    room, cost = 0.0, operations(model) * max(1, masks)
    budget = WORK * (1 if device == "cpu" else ELSEWHERE)
    for batch in batches_by_length(lengths, tokens):
        work = sum(lengths[index] for index in batch) * cost
        if not shards or work > room:
            shards.append([])
            room = budget
        shards[-1].extend(batch)
        room -= work
    return shards


def operations(model: Any) -> float:
    """Of a token's forward pass, about: two for every weight that is no embedding. Without a model, a small one's."""
    if model is None:
        return 2e7
    embeddings = getattr(model, "get_input_embeddings", lambda: None)()
    looked_up = 0 if embeddings is None else sum(weight.numel() for weight in embeddings.parameters())
    return 2.0 * max(1, sum(weight.numel() for weight in model.parameters()) - looked_up)


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
