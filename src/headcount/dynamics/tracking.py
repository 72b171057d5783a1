"""Score and prune checkpoint after checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import nn

from headcount.anatomy import anatomy
from headcount.dynamics.checkpoints import in_order, refuse_different
from headcount.dynamics.result import Dynamics
from headcount.dynamics.snapshot import Progress, measure, read_snapshot
from headcount.engine import RunDirectory, open_run
from headcount.errors import HeadcountError
from headcount.signature import fingerprint, versions
from headcount.surgery import load
from headcount.surgery.load import fetch
from headcount.tasks import Task


def track(
    checkpoints: Iterable[str | Path],
    task: Task,
    score_task: Task,
    *,
    step: float = 0.1,
    orders: int = 3,
    seed: int = 0,
    allow_overlap: bool = False,
    run: str | Path | RunDirectory | None = None,
    loading: Callable[[str], nn.Module] | None = None,
    progress: Progress | None = None,
) -> Dynamics:
    """Score and prune each checkpoint of a training run, by importance and in random order.

    checkpoints: directories, or patterns such as "run/epoch-*"; neighbours in one directory are put in the order of
    their numbers, so that epoch-10 comes after epoch-2. All must have the same shape.
    task: what the curves are measured on; score_task: other data, that heads are scored on. Both for all checkpoints.
    step: a share of the heads, or a number of them. orders: how many random orders are averaged, from `seed` on.
    run: a run directory; a finished checkpoint is not computed again.
    loading: makes a model of a name; default `load`, in float32.
    """
    paths = in_order(checkpoints)
    if orders < 1:
        raise HeadcountError(f"at least one random order is needed to compare with, not {orders}")
    refuse_different(paths)
    signature = {
        "checkpoints": paths, "tasks": [score_task.signature(), task.signature()], "step": step, "orders": orders,
        "seed": seed, "versions": versions(),
    }  # fmt: skip
    names = [Path(path).name for path in paths]
    names = [path if names.count(name) > 1 else name for path, name in zip(paths, names, strict=True)]
    found = []
    with open_run(run, signature) as directory:
        for place, (path, name) in enumerate(zip(paths, names, strict=True)):
            model = (loading or _load)(path)
            shard = f"checkpoint-{fingerprint(model)}"
            heads = {str(head) for head in anatomy(model).heads}
            told = None if directory is None else read_snapshot(name, directory.load_shard(shard), heads)
            if told is None:
                part = _part(progress, place, len(paths))
                content = measure(model, task, score_task, step, range(seed, seed + orders), allow_overlap, part)
                kept = {"json": np.frombuffer(json.dumps(content).encode(), np.uint8)}
                if directory is not None:
                    directory.save_shard(shard, kept)
                told = read_snapshot(name, kept, heads)
                assert told is not None
            found.append(told)
            if directory is not None:  # a report shows what there is so far
                shots = [asdict(one) for one in found]
                directory.write({"metric": task.metric.name, "n": len(task), "checkpoints": shots}, finished=False)
            if progress is not None:
                progress((place + 1) / len(paths))
        result = Dynamics(tuple(found), task.metric)
        if directory is not None:
            directory.write({"metric": task.metric.name, "n": len(task), **result.to_json()})
    return result


def _load(path: str) -> nn.Module:
    return load(fetch(path), dtype=torch.float32)


def _part(progress: Progress | None, place: int, of: int) -> Progress | None:
    return None if progress is None else lambda share: progress((place + share) / of)
