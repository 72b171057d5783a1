"""What the measured speeds mean, in one sentence that claims no more than the timings show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SMALL = 0.02  # a smaller change does not count, however certain it is


@dataclass(frozen=True)
class SpeedRow:
    """Two models side by side at one batch size and length: examples (or decoded tokens) per second.

    speedup, low, high: how many times as fast, with its 95% interval. limit: the ratio of counted FLOPs.
    latency: median seconds per batch. cache: bytes of keys and values at the end.
    """

    model: str
    batch: int
    length: int
    original: float
    pruned: float | None = None
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    latency_original: float | None = None
    latency_pruned: float | None = None
    tokens: int | None = None
    cache_original: int | None = None
    cache_pruned: int | None = None


def verdict(rows: Sequence[SpeedRow]) -> str:
    """Say where the second model is faster, by how much, and how much FLOPs would allow.

    >>> fast = SpeedRow("pruned", 16, 128, 50, 60.5, 1.21, 1.19, 1.23, 1.23)
    >>> verdict([fast, SpeedRow("pruned", 1, 128, 50, 50, 1.0, 0.97, 1.04, 1.23)])
    'faster by 21% (limit 23%) at batch 16; no gain at batch 1'

    A speedup counts if it is at least 2% and its whole interval lies above 1. An interval that is too wide to tell is
    called so.
    """
    compared = [row for row in rows if row.speedup is not None]
    several = len({row.length for row in compared}) > 1
    places: dict[str, list[str]] = {}
    for row in compared:
        places.setdefault(_finding(row), []).append(_place(row, several))
    order = ("faster", "too", "no", "slower")
    found = sorted(places, key=lambda finding: order.index(finding.split()[0]))  # stable: batches stay in their order
    return "; ".join(f"{finding} at {_joined(places[finding])}" for finding in found)


def _finding(row: SpeedRow) -> str:
    assert row.speedup is not None
    assert row.low is not None
    assert row.high is not None
    gain, limit = row.speedup - 1, "" if row.limit is None else f" (limit {row.limit - 1:.0%})"
    if row.low > 1 and gain >= SMALL:
        return f"faster by {gain:.0%}{limit}"
    if row.high < 1 and gain <= -SMALL:
        return f"slower by {1 - row.speedup:.0%}"
    if row.high - row.low > 4 * SMALL and row.high - 1 >= SMALL:
        return f"too noisy to tell ({row.low - 1:+.0%} to {row.high - 1:+.0%})"
    return "no gain"


def _place(row: SpeedRow, several: bool) -> str:
    return f"batch {row.batch}" + (f", length {row.length}" if several else "")


def _joined(places: list[str]) -> str:
    if all("," not in place for place in places):
        places = [places[0], *(place.removeprefix("batch ") for place in places[1:])]
        return " and ".join(filter(None, [", ".join(places[:-1]), places[-1]]))
    return " and at ".join(places)
