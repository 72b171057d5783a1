"""What the measured speeds mean, in one sentence that claims no more than the timings show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SMALL = 0.02  # a smaller change does not count, however certain it is
LARGE = 0.5  # from here on, gains are written as times instead of percent


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
    >>> verdict([SpeedRow("pruned", 16, 128, 50, 105, 2.1, 2.0, 2.2, 2.4)])
    '2.10 times as fast (limit 2.40) at batch 16'

    A speedup counts if it is at least 2% and its whole interval lies above 1. An interval that is too wide to tell is
    called so.
    """
    compared = [row for row in rows if row.speedup is not None]
    several = len({row.length for row in compared}) > 1
    in_times = any((row.speedup or 0.0) - 1 >= LARGE for row in compared)
    places: dict[tuple[int, str], list[str]] = {}
    for row in compared:
        places.setdefault(_finding(row, in_times), []).append(_place(row, several))
    found = sorted(places, key=lambda finding: finding[0])  # stable: batches stay in their order
    return "; ".join(f"{finding[1]} at {_joined(places[finding])}" for finding in found)


def _finding(row: SpeedRow, in_times: bool) -> tuple[int, str]:
    """What one row shows, after its place in the sentence: faster, too noisy, no gain, slower."""
    assert row.speedup is not None
    assert row.low is not None
    assert row.high is not None
    gain = row.speedup - 1
    if row.low > 1 and gain >= SMALL and in_times:
        return 0, f"{row.speedup:.2f} times as fast" + ("" if row.limit is None else f" (limit {row.limit:.2f})")
    if row.low > 1 and gain >= SMALL:
        return 0, f"faster by {gain:.0%}" + ("" if row.limit is None else f" (limit {row.limit - 1:.0%})")
    if row.high < 1 and gain <= -SMALL:
        return 3, f"slower by {1 - row.speedup:.0%}"
    if row.high - row.low > 4 * SMALL and row.high - 1 >= SMALL:
        return 1, f"too noisy to tell ({row.low - 1:+.0%} to {row.high - 1:+.0%})"
    return 2, "no gain"


def _place(row: SpeedRow, several: bool) -> str:
    return f"batch {row.batch}" + (f", length {row.length}" if several else "")


def _joined(places: list[str]) -> str:
    if all("," not in place for place in places):
        places = [places[0], *(place.removeprefix("batch ") for place in places[1:])]
        return " and ".join(filter(None, [", ".join(places[:-1]), places[-1]]))
    return " and at ".join(places)
