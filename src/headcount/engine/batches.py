"""Batches of examples of similar length, under a budget of tokens: no padding to a maximum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headcount.structure import anatomy, device_of

TOKENS = 2048  # per batch, where nothing better is known
CACHE, MEMORY = 8 * 2**20, 512 * 2**20  # bytes of the widest activation: a CPU's cache decides, elsewhere the memory


def tokens_for(model: Any, device: str | None = None) -> int:
    """How many tokens to run at a time: on a CPU as many as keep a layer's widest activation in the cache.

    device: the type of device that will run it, if not the model's own.
    """
    hidden = max((site.output.weight.shape[-1] for site in anatomy(model).sites), default=1)
    budget = CACHE if (device or device_of(model).type) == "cpu" else MEMORY
    tokens = max(256, budget // (4 * 4 * max(1, hidden)))  # feed-forward layers are four times as wide, in float32
    head: Any = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    vocabulary = 1 if getattr(head, "weight", None) is None else head.weight.shape[0]
    return max(64, min(tokens, MEMORY // (4 * vocabulary)))  # the logits of a language model must fit as well


def batches_by_length(lengths: Sequence[int], tokens: int = TOKENS) -> list[list[int]]:
    """Cut examples, sorted by length, into batches of at most `tokens` tokens, padding included.

    >>> batches_by_length([9, 2, 3, 8], tokens=16)
    [[1, 2], [3], [0]]
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        width = max(1, lengths[index])  # the longest so far
        if batches and width * (len(batches[-1]) + 1) <= tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
