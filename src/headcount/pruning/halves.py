"""One half chooses, the other proves."""

from __future__ import annotations

import numpy as np

from headcount.errors import BadData
from headcount.tasks import Task


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
