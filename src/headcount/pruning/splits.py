"""Three purposes, three sets of rows: what scores, what chooses and what proves are kept apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headcount.errors import BadData, HeadcountError
from headcount.scoring import refuse_one_class
from headcount.structure import anatomy
from headcount.tasks import Task

SCORE_EXAMPLES = 1024  # on more, an order of heads changes little


@dataclass(frozen=True)
class Data:
    """What scores, what chooses and what proves, kept apart."""

    score: Task
    select: Task
    test: Task
    remarks: tuple[str, ...]


def keep_apart(
    score_task: Task, select_task: Task, test_task: Task | None, score_examples: int, seed: int, allow_overlap: bool
) -> Data:
    """The data for each purpose; rows in common, and metrics that differ, are refused."""
    refuse_one_class(score_task)
    remarks = []
    refuse_overlap(score_task.keys(), select_task, "the score data", allow_overlap)
    if test_task is None:
        select_task, test_task = split_halves(select_task, seed)
        remarks.append(
            f"There is no test data, so the data was split: {len(select_task)} examples chose, {len(test_task)} prove."
        )
    else:
        refuse_overlap(score_task.keys(), test_task, "the score data", allow_overlap)
        refuse_overlap(select_task.keys(), test_task, "the data that chooses", allow_overlap)
    if select_task.metric.name != test_task.metric.name:
        raise BadData(f"one metric chooses and proves, not {select_task.metric.name} and {test_task.metric.name}")
    if len(score_task) > score_examples:
        chosen = np.random.default_rng(seed).permutation(len(score_task))[:score_examples]
        score_task = score_task.subset(sorted(chosen.tolist()))
        refuse_one_class(score_task)
        remarks.append(f"Heads were scored on {score_examples} examples, chosen at random.")
    return Data(score_task, select_task, test_task, tuple(remarks))


def refuse_headless(model: Any) -> None:
    """A model that has nothing left to remove."""
    if not anatomy(model).heads:
        raise HeadcountError("all attention heads of this model have already been removed")


def split_halves(task: Task, seed: int = 0) -> tuple[Task, Task]:
    """Two random halves of a task that share no example; rows with the same content stay together.

    >>> from headcount.tasks import BaseTask, Metric
    >>> metric = Metric("accuracy", lambda sums: sums[..., 1] / sums[..., 0])
    >>> one, other = split_halves(BaseTask({"input_ids": [[i] for i in range(10)]}, metric=metric))
    >>> len(one), len(other), len({*one.keys()} & {*other.keys()})
    (5, 5, 0)
    """
    groups: dict[str, list[int]] = {}
    for place, key in enumerate(task.keys()):
        groups.setdefault(key, []).append(place)
    if len(groups) < 2:
        raise BadData(f"{len(task)} different examples cannot be split in two: one half chooses, the other proves")
    names = list(groups)
    halves: tuple[list[int], list[int]] = ([], [])
    for position in np.random.default_rng(seed).permutation(len(names)):
        smaller = min(halves, key=len)
        smaller.extend(groups[names[position]])
    one, other = (task.subset(sorted(half)) for half in halves)
    return one, other


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
