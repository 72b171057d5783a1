"""Cut a task's examples into shards that take a few seconds each, along the borders of its batches."""

from __future__ import annotations

from collections.abc import Sequence

from headcount.evaluate.batches import TOKENS, batches_by_length

WORK = 40_000  # tokens times masks in a shard: seconds for a small model on two cores; a batch is the least


def cut_shards(lengths: Sequence[int], masks: int, tokens: int = TOKENS) -> list[list[int]]:
    """Shards of whole batches, so that an example is in the same batch however the work is cut.

    >>> cut_shards([5] * 6, masks=100_000, tokens=10)
    [[0, 1], [2, 3], [4, 5]]
    """
    shards: list[list[int]] = []
    room = 0
    for batch in batches_by_length(lengths, tokens):
        work = sum(lengths[index] for index in batch) * max(1, masks)
        if not shards or work > room:
            shards.append([])
            room = WORK
        shards[-1].extend(batch)
        room -= work
    return shards
