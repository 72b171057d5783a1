"""Shards: a task's examples, cut into pieces of a few seconds' work, handed out to workers and put together again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headcount.engine.work import (
    TOKENS,
    Arrays,
    Examples,
    Local,
    Progress,
    Work,
    batches_by_length,
    current,
    device_type,
    join,
    log,
    split,
)
from headcount.runs import RunDirectory

WORK = 8e11  # floating point operations in a shard, seconds on two cores; a shard is at least one batch
ELSEWHERE = 50  # times as much on a GPU
TRIES = 2  # of a shard on workers that die, before it is taken to be too large for them


def over_shards(
    work: Work,
    model: Any,
    data: Examples,
    *,
    masks: int = 1,
    directory: RunDirectory | None = None,
    name: str = "outcomes",
    signature: str = "",
    progress: Progress | None = None,
) -> Arrays:
    """The work's arrays for all examples, in their order.

    masks: how many passes over an example the work makes, for shards that take a few seconds.
    directory: where finished shards are kept under `name`, and found again if they have the same `signature`.
    Without a directory, and without an engine that wants shards, the work is done in one piece.
    """
    engine = current()
    if engine is None and directory is None:
        shards: Sequence[Sequence[int]] = [range(len(data))]
    else:
        shards = cut_shards(data.lengths, masks, work.tokens, model, device_type(model))
    kept = _Kept(directory, name, signature)
    gathered = _Gathered(work, len(data), shards)
    missing = []
    for number in range(len(shards)):
        arrays = kept.load(number)
        if arrays is not None and work.fits(arrays, len(shards[number])) and gathered.alike(arrays):
            gathered.add(number, arrays)
        else:
            missing.append(number)
    if 0 < len(missing) < len(shards):
        log.info("resuming: %d of %d shards done", len(shards) - len(missing), len(shards))
    share = len(missing) / len(shards)
    rest = None if progress is None else lambda done: progress(1 - share + share * done)
    for place, arrays in (engine or Local()).run(work, model, data, [shards[number] for number in missing], rest):
        kept.save(missing[place], arrays)
        gathered.add(missing[place], arrays)
    return gathered.all()


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
        needed = sum(lengths[index] for index in batch) * cost
        if not shards or needed > room:
            shards.append([])
            room = budget
        shards[-1].extend(batch)
        room -= needed
    return shards


def operations(model: Any) -> float:
    """About how many a token's forward pass takes: two for every weight outside of embeddings.

    Without a model, those of a small one.
    """
    if model is None:
        return 2e7
    embeddings = getattr(model, "get_input_embeddings", lambda: None)()
    looked_up = 0 if embeddings is None else sum(weight.numel() for weight in embeddings.parameters())
    return 2.0 * max(1, sum(weight.numel() for weight in model.parameters()) - looked_up)


class _Kept:
    """Finished shards in a run directory, each with the signature of what it belongs to."""

    SIGNATURE = "signature"

    def __init__(self, directory: RunDirectory | None, name: str, signature: str) -> None:
        self.directory, self.name = directory, name
        self.signature = np.frombuffer(signature.encode(), np.uint8)

    def load(self, number: int) -> Arrays | None:
        """A shard, if it is there, whole, and of the same signature."""
        arrays = None if self.directory is None else self.directory.load_shard(f"{self.name}-{number:05d}")
        if arrays is None or not np.array_equal(arrays.pop(self.SIGNATURE, np.empty(0)), self.signature):
            return None
        return arrays

    def save(self, number: int, arrays: Arrays) -> None:
        if self.directory is not None:
            signed = {**arrays, self.SIGNATURE: self.signature} if len(self.signature) else arrays
            self.directory.save_shard(f"{self.name}-{number:05d}", signed)


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


@dataclass(eq=False)
class Assignment:
    """Examples for one worker: a shard, or a half of one that was too large."""

    shard: int
    indices: Sequence[int]
    deaths: int = 0  # of workers that were doing it


class ShardQueue:
    """Shards that wait for workers; what a dead worker had waits again, and is halved once two have died of it."""

    def __init__(self, work: Work, data: Examples, shards: Sequence[Sequence[int]]) -> None:
        self.work, self.data, self.count = work, data, len(shards)
        self.waiting = deque(Assignment(number, indices) for number, indices in enumerate(shards))
        self.unfinished: dict[int, list[Assignment]] = {one.shard: [one] for one in self.waiting}  # by shard
        self.results: dict[Assignment, Arrays] = {}

    @property
    def share_done(self) -> float:
        return 1 - len(self.unfinished) / self.count

    def take(self) -> Assignment | None:
        """What to do next."""
        return self.waiting.popleft() if self.waiting else None

    def finish(self, assignment: Assignment, arrays: Arrays) -> Arrays | None:
        """The arrays of the whole shard, if this was the last part of it."""
        self.results[assignment] = arrays
        parts = self.unfinished[assignment.shard]
        if not all(one in self.results for one in parts):
            return None
        del self.unfinished[assignment.shard]
        return join(self.work, [self.results.pop(one) for one in parts])

    def give_back(self, assignments: Sequence[Assignment], reason: str, begun: bool = True) -> None:
        """Let everything that a dead worker had wait again, before all others.

        assignments: the first is what the worker was doing, unless it had not begun.
        """
        again = list(assignments)
        if begun:
            again[0].deaths += 1
        if begun and again[0].deaths >= TRIES:
            again[:1] = self._halve(again[0], reason)
        else:
            log.warning("a worker has died (%s): another one will do its shard again", reason)
        self.waiting.extendleft(reversed(again))

    def _halve(self, assignment: Assignment, reason: str) -> list[Assignment]:
        indices = split(self.work, self.data, assignment.indices, reason)
        halves = [Assignment(assignment.shard, half) for half in indices]
        parts = self.unfinished[assignment.shard]
        place = parts.index(assignment)
        parts[place : place + 1] = halves
        return halves
