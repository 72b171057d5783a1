"""`sweep`: evaluate many masks shard by shard, keeping what is finished."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from headcount.anatomy import anatomy
from headcount.engine.engines import device_type
from headcount.engine.over_shards import over_shards
from headcount.engine.rundir import RunDirectory, open_run
from headcount.engine.work import Arrays, Progress, is_finite
from headcount.errors import HeadcountError, unknown
from headcount.evaluate import Mask, Outcomes, evaluate
from headcount.evaluate.batches import tokens_for
from headcount.evaluate.means import context_sums, means_of
from headcount.evaluate.plan import read_masks
from headcount.heads import Head
from headcount.signature import model_signature, versions
from headcount.tasks import Task

FILLS = ("zero", "mean")


def sweep(
    model: Any,
    task: Task,
    masks: Sequence[Iterable[Head | str] | str] | None = None,
    *,
    fill: str = "zero",
    run: str | Path | RunDirectory | None = None,
    name: str = "outcomes",
    fast: bool = True,
    tokens: int | None = None,
    progress: Callable[[float], None] | None = None,
) -> Outcomes:
    """`evaluate`, cut into shards of examples whose outcomes are kept in a run directory as they finish.

    fill: what a silent head puts out: "zero", or "mean", its mean output over the data.
    run: a directory; running the same sweep again continues where it stopped.
    name: of the shards, where one run makes several sweeps.
    The engine of the surrounding `using(…)` does the work, by default this process.
    """
    if fill not in FILLS:
        raise HeadcountError(unknown("fill", fill, FILLS))
    asked = read_masks(anatomy(model), masks)
    task.check(model)
    tokens = tokens or tokens_for(model, device_type(model))
    signature = sweep_signature(model, task, asked, fill, fast, tokens)
    with open_run(run, signature) as directory:
        means = None
        if fill == "mean":
            means = means_of(over_shards(Contexts(tokens), model, task, directory=directory, name=f"{name}-means"))
        arrays = over_shards(
            Evaluation(asked, tokens, fast, means), model, task,
            masks=len(asked), directory=directory, name=name, progress=progress,
        )  # fmt: skip
    return Outcomes(asked, arrays["values"].swapaxes(0, 1), task.metric, signature, int(arrays["near_ties"]))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """`evaluate` as work: for each example the statistics of every mask, (N, M, S)."""

    masks: tuple[Mask, ...]
    tokens: int
    fast: bool = True
    fill: Mapping[str, Tensor] | None = None

    def summed(self, name: str) -> bool:
        return name == "near_ties"

    def fits(self, arrays: Arrays, count: int) -> bool:
        values, ties = arrays.get("values"), arrays.get("near_ties")
        if values is None or ties is None or ties.shape != () or ties.dtype.kind != "i":
            return False
        return values.ndim == 3 and values.shape[:2] == (count, len(self.masks)) and is_finite(values)

    def __call__(self, model: Any, examples: Any, progress: Progress | None = None) -> Arrays:
        made = evaluate(
            model, examples, self.masks, fill=self.fill, fast=self.fast, tokens=self.tokens, progress=progress
        )
        return {"values": np.ascontiguousarray(made.values.swapaxes(0, 1)), "near_ties": np.array(made.near_ties)}


@dataclass(frozen=True)
class Contexts:
    """What the mean output of every head is computed from: sums over tokens."""

    tokens: int

    def summed(self, name: str) -> bool:
        return True

    def fits(self, arrays: Arrays, count: int) -> bool:
        return all(is_finite(array) for array in arrays.values())

    def __call__(self, model: Any, examples: Any, progress: Progress | None = None) -> Arrays:
        return context_sums(model, examples, self.tokens)


def sweep_signature(model: Any, task: Task, masks: Sequence[Any], fill: str, fast: bool, tokens: int) -> dict[str, Any]:
    """All that the outcomes of a sweep depend on."""
    written = ";".join(",".join(sorted(map(str, mask))) for mask in masks)
    return {
        "model": model_signature(model),
        "task": task.signature(),
        "masks": {"count": len(masks), "fingerprint": hashlib.sha256(written.encode()).hexdigest()[:16]},
        "fill": fill,
        "batches": {"tokens": tokens, "fast": fast},
        "versions": versions(),
    }
