"""Three data sets that share no row: for scoring heads, for selecting the cut, and for testing it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from headcount.errors import BadData, HeadcountError, counted, unknown
from headcount.scoring import refuse_one_class
from headcount.settings import OVERLAPS, Pruning
from headcount.structure import anatomy, refuse_exported
from headcount.tasks import Task

HELD_OUT, AT_MOST = 0.1, 1000  # share and number of examples to hold out of training data


@dataclass(frozen=True)
class Splits:
    """The data of a pruning job, and what the user should know about it."""

    score: Task
    select: Task
    test: Task
    remarks: tuple[str, ...]


def split_data(score_task: Task, select_task: Task, test_task: Task | None, settings: Pruning) -> Splits:
    """The data for scoring, selection and testing; without test data, half of the selection data is held out."""
    refuse_one_class(score_task)
    select_task, remarks = resolve_overlap(
        score_task.keys(), select_task, "the score data", settings.overlap, "selection"
    )
    if test_task is None:
        select_task, test_task = split_in_two(select_task, settings.seed)
        kept = counted(len(select_task), "example")
        remarks.append(f"No test data: {kept} for selection, {len(test_task)} for testing.")
    else:
        for earlier, what in ((score_task, "the score data"), (select_task, "the selection data")):
            test_task, dropped = resolve_overlap(earlier.keys(), test_task, what, settings.overlap, "test")
            remarks += dropped
    if select_task.metric.name != test_task.metric.name:
        raise BadData(
            f"selection and testing need one metric, not {select_task.metric.name} and {test_task.metric.name}"
        )
    if len(score_task) > settings.score_examples:
        drawn = np.random.default_rng(settings.seed).permutation(len(score_task))[: settings.score_examples]
        score_task = score_task.subset(sorted(drawn.tolist()))
        refuse_one_class(score_task)
        remarks.append(
            f"{_scored(settings)} are scored on {counted(settings.score_examples, 'example')}, drawn at random."
        )
    return Splits(score_task, select_task, test_task, tuple(remarks))


def _scored(settings: Pruning) -> str:
    return "Heads" if settings.units == ("heads",) else "Units"


def resolve_overlap(
    seen_keys: Iterable[str], task: Task, what: str, overlap: str = "refuse", own_name: str = "evaluation"
) -> tuple[Task, list[str]]:
    """A task without the rows that earlier data shares with it, and what the user should know about that.

    >>> from headcount.tasks import BaseTask, Metric
    >>> metric = Metric("accuracy", lambda sums: sums[..., 1] / sums[..., 0])
    >>> train, dev = (BaseTask({"input_ids": [[i] for i in ids]}, metric=metric) for ids in ((1, 2, 3), (3, 4, 5)))
    >>> rest, remarks = resolve_overlap(train.keys(), dev, "the training data", "drop")
    >>> len(rest), remarks
    (2, ['1 of 3 evaluation examples was dropped: it is also in the training data.'])

    seen_keys: the keys of the earlier data, as `task.keys()` gives them. what: how messages name that data, and
        own_name: the examples of the task.
    overlap: "refuse" stops at a shared row, "drop" leaves the shared rows out, "allow" keeps them.
    """
    if overlap not in OVERLAPS:
        raise HeadcountError(unknown("overlap", overlap, OVERLAPS))
    if overlap == "allow":
        return task, []
    seen = set(seen_keys)
    own = [place for place, key in enumerate(task.keys()) if key not in seen]
    shared = len(task) - len(own)
    if not shared:
        return task, []
    number = f"{shared} of {len(task)} {own_name} examples"
    if overlap == "refuse":
        first = min(set(range(len(task))) - set(own))
        places = getattr(task, "places", None)
        raise BadData(
            f"{number} are also in {what} (first: {places[first] if places else f'example {first}'})",
            advice="remove them from the data, or set {overlap} to drop or allow",
        )
    if not own:
        raise BadData(
            f"all {len(task)} {own_name} examples are also in {what}: none would be left", advice="use other data"
        )
    verb, rest = ("was", "it is") if shared == 1 else ("were", "they are")
    return task.subset(own), [f"{number} {verb} dropped: {rest} also in {what}."]


def split_in_two(task: Task, seed: int = 0) -> tuple[Task, Task]:
    """Two random halves of a task that share no example; rows with the same content stay together.

    >>> from headcount.tasks import BaseTask, Metric
    >>> metric = Metric("accuracy", lambda sums: sums[..., 1] / sums[..., 0])
    >>> one, other = split_in_two(BaseTask({"input_ids": [[i] for i in range(10)]}, metric=metric))
    >>> len(one), len(other), len({*one.keys()} & {*other.keys()})
    (5, 5, 0)
    """
    groups: dict[str, list[int]] = {}
    for place, key in enumerate(task.keys()):
        groups.setdefault(key, []).append(place)
    if len(groups) < 2:
        raise BadData(f"{counted(len(task), 'example')} with the same text cannot be split for selection and testing")
    names = list(groups)
    parts: tuple[list[int], list[int]] = ([], [])
    for position in np.random.default_rng(seed).permutation(len(names)):
        min(parts, key=len).extend(groups[names[position]])
    one, other = (task.subset(sorted(part)) for part in parts)
    return one, other


def refuse_headless(model: Any, units: str | Iterable[str] = "heads") -> None:
    """Refuse a model that has none of these units left to remove, or whose units are out of reach."""
    refuse_exported(model)
    if not anatomy(model, units).heads:
        what = "attention heads" if "heads" in units else "units of these kinds"
        raise HeadcountError(f"all {what} of this model have already been removed")


def hold_out(task: Task, test: Task | None, seed: int, overlap: str = "refuse") -> tuple[Task, Task, list[str]]:
    """Training data, test data, and remarks on how they were made; without test data, a tenth is held out."""
    if test is not None:
        test, remarks = resolve_overlap(task.keys(), test, "the training data", overlap, "test")
        return task, test, remarks
    order = np.random.default_rng(seed).permutation(len(task)).tolist()
    count = min(AT_MOST, round(HELD_OUT * len(order)))
    if not count:
        raise HeadcountError(f"{counted(len(order), 'example')} cannot be split", advice="pass {test_task}")
    train, test = task.subset(sorted(order[count:])), task.subset(sorted(order[:count]))
    remark = (
        f"No test data was given: {counted(len(test), 'example')} held out, {len(train)} used for training. "
        "The model was probably trained on them before, so that it has seen what it is tested on: "
        "give test data of its own (--test)."
    )
    return train, test, [remark]
