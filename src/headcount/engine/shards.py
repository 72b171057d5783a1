"""Cut a task's examples into shards that take a few seconds each, along the borders of its batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headcount.evaluate.batches import TOKENS, batches_by_length

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
