"""Batches of examples of similar length, under a budget of tokens: no padding to a maximum."""

from __future__ import annotations

from collections.abc import Sequence

TOKENS = 2048  # per batch; on a CPU larger batches gain nothing and cost memory


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
