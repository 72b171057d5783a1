"""Three purposes, three sets of rows: what scores, what chooses and what proves are kept apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headcount.anatomy import anatomy
from headcount.errors import BadData, HeadcountError
from headcount.importance.compute import refuse_one_class
from headcount.pruning.halves import split_halves
from headcount.pruning.overlap import refuse_overlap
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
