"""`sweep`: evaluate many masks shard by shard, keeping what is finished."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headcount.anatomy import anatomy
from headcount.engine.rundir import RunDirectory, open_run
from headcount.engine.shards import cut_shards
from headcount.errors import HeadcountError, unknown
from headcount.evaluate import Outcomes, evaluate
from headcount.evaluate.batches import tokens_for
from headcount.evaluate.means import mean_contexts
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
    """
    if fill not in FILLS:
        raise HeadcountError(unknown("fill", fill, FILLS))
    asked = read_masks(anatomy(model), masks)
    tokens = tokens or tokens_for(model)
    means = mean_contexts(model, task, tokens) if fill == "mean" else None
    settings: dict[str, Any] = {"fill": means, "fast": fast, "tokens": tokens}
    signature = sweep_signature(model, task, asked, fill, fast, tokens)
    with open_run(run, signature) as directory:
        if directory is None:
            return evaluate(model, task, asked, progress=progress, **settings)
        shards = cut_shards(task.lengths, len(asked), tokens)
        values: np.ndarray | None = None
        near_ties = 0
        for number, indices in enumerate(shards):
            shard = directory.load_shard(f"{name}-{number:05d}")
            if shard is None or not _fits(shard, (len(asked), len(indices)), values):
                step = _part(progress, number, len(shards))
                part = evaluate(model, task.subset(indices), asked, progress=step, **settings)
                shard = {"values": part.values, "near_ties": np.array([part.near_ties])}
                directory.save_shard(f"{name}-{number:05d}", shard)
            if values is None:
                values = np.zeros((len(asked), len(task), shard["values"].shape[-1]))
            values[:, indices] = shard["values"]
            near_ties += int(shard["near_ties"][0])
            if progress is not None:
                progress((number + 1) / len(shards))
    assert values is not None
    return Outcomes(asked, values, task.metric, signature, near_ties)


def _fits(shard: dict[str, np.ndarray], size: tuple[int, int], others: np.ndarray | None) -> bool:
    """Whether a shard holds what is kept of so many masks and examples, as much of each as the others hold."""
    values, ties = shard.get("values"), shard.get("near_ties")
    if values is None or ties is None or values.ndim != 3 or ties.shape != (1,) or ties.dtype.kind != "i":
        return False
    if values.shape[:2] != size or (others is not None and values.shape[-1] != others.shape[-1]):
        return False
    return values.dtype.kind == "f" and bool(np.isfinite(values).all())


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


def _part(progress: Callable[[float], None] | None, number: int, count: int) -> Callable[[float], None] | None:
    return None if progress is None else lambda share: progress((number + share) / count)
