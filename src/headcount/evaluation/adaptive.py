"""Sweeps that stop early: every mask gets examples only until its change is decided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headcount.engine import Progress, device_type, tokens_for
from headcount.errors import HeadcountError
from headcount.evaluation.fills import mean_contexts
from headcount.evaluation.outcomes import Outcomes
from headcount.evaluation.sweep import evaluate, read_masks, run_signature
from headcount.heads import Head
from headcount.runs import RunDirectory, open_run
from headcount.stats import Deciding
from headcount.structure import whole_anatomy
from headcount.tasks import Task, digest


def evaluate_until_decided(
    model: Any,
    task: Task,
    masks: Sequence[Iterable[Head | str]],
    deciding: Deciding,
    *,
    fill: str = "zero",
    run: str | Path | RunDirectory | None = None,
    name: str = "outcomes",
    progress: Progress | None = None,
) -> Outcomes:
    """Evaluate growing chunks of the examples, in a random order, each under the masks that are not decided yet.

    A chunk is an evaluation of its own in the run directory: an interrupted sweep finds the same decisions in what is
    kept, and hence the same masks for the next chunk.

    masks: in the order of `deciding`, which holds the decisions afterwards. fill, run, name, progress: as of
        `evaluate`. Returns the outcomes of the whole model, on all examples that were seen.
    """
    metric = task.metric
    if metric.of_rows is not None:
        raise HeadcountError(
            f"an adaptive sweep cannot use {metric.name}, which is a function of all examples together, not of sums",
            advice="choose another {metric}, or leave {adaptive} out",
        )
    n, tokens = len(task), tokens_for(model, device_type(model))
    asked = read_masks(whole_anatomy(model), masks)
    signature = {**run_signature(model, task, asked, fill, True, tokens), "deciding": deciding.signature()}
    order = np.random.default_rng(deciding.seed).permutation(n).tolist()
    values, seen, near_ties = np.zeros((0, 0, 0)), 0, 0
    with open_run(run, signature) as directory:
        filled: Any = fill
        if fill == "mean":  # over all of the data, not over a chunk
            known = digest(signature)
            filled = mean_contexts(model, task, tokens, directory=directory, name=f"{name}-means", signature=known)
        for look, size in enumerate(deciding.looks):
            chunk = task.subset(order[seen:size])
            some = [(), *(asked[place] for place in deciding.open)]
            part = None if progress is None else partial(_part, progress, seen / n, size / n)
            found = evaluate(
                model, chunk, some, fill=filled, tokens=tokens, run=directory, name=f"{name}-{look:02d}", progress=part
            )
            values = np.concatenate([values, found.values], axis=1) if seen else found.values  # (1 + open, seen, S)
            seen, near_ties = size, near_ties + found.near_ties
            values = values[np.concatenate([[True], deciding.look(values[0], values[1:])])]
            if len(values) == 1:
                break
    if progress is not None:
        progress(1.0)
    return Outcomes((frozenset(),), values[:1], metric, signature, near_ties)


def _part(progress: Progress, start: float, end: float, share: float) -> None:
    progress(start + (end - start) * share)


@dataclass(frozen=True, eq=False)
class Adaptive:
    """How an adaptive sweep ended for each head, in the order of the heads.

    margin: in points. decisions: "missed", "within" or "undecided". examples: how many each head was given, out of
    those that were `available`.
    """

    margin: float
    decisions: tuple[str, ...]
    examples: np.ndarray  # (heads,)
    available: int
