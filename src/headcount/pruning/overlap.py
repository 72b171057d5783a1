"""Data that a choice was made on proves nothing about it: the same rows in two data sets are found by their content."""

from __future__ import annotations

from collections.abc import Sequence

from headcount.errors import BadData
from headcount.tasks import Task


def refuse_overlap(seen: Sequence[str], task: Task, what: str, allow: bool = False) -> int:
    """How many examples of a task have been seen before; any at all are refused unless they are allowed.

    seen: keys of the examples that a choice was made on. what: how a message names them, "the score data".
    """
    known = set(seen)
    same = [place for place, key in enumerate(task.keys()) if key in known]
    if same and not allow:
        places = getattr(task, "places", None)
        first = places[same[0]] if places else f"example {same[0]}"
        raise BadData(
            f"{len(same)} of {len(task)} evaluation examples are also in {what} (first: {first}); "
            "take them out, or allow it with --allow-overlap (allow_overlap=True)"
        )
    return len(same)
