"""Passes over the data in batches: the model frozen, one row of values per example, in the order of the examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headcount.anatomy import anatomy
from headcount.errors import BadData, HeadcountError
from headcount.evaluate.batches import TOKENS, batches_by_length
from headcount.tasks import Batch, Task

Progress = Callable[[float], None]


def collect(
    model: Any,
    task: Task,
    of_batch: Callable[[Any, Task, Batch], Tensor],
    *,
    what: str,
    tokens: int = TOKENS,
    progress: Progress | None = None,
) -> np.ndarray:
    """What `of_batch` gives for every batch, (B, …) with as many columns each time, as one array (examples, …).

    what: the name of the values, for the refusal of those that are no numbers.
    tokens: per batch of the computation, padding included; changes nothing but memory.
    """
    task.check(model)
    if not anatomy(model).heads:
        raise HeadcountError("the model has no attention heads left: there is nothing to score")
    rows: list[np.ndarray | None] = [None] * len(task)
    device, done = next(model.parameters()).device, 0
    with frozen(model):
        for indices in batches_by_length(task.lengths, tokens):
            part = of_batch(model, task, task.batch(indices).to(device)).float().cpu().numpy()
            bad = np.flatnonzero(~np.isfinite(part.reshape(len(part), -1)).all(1))
            if len(bad):
                example = indices[int(bad[0])]
                place = getattr(task, "places", None)
                raise BadData(f"{place[example] if place else f'example {example}'}: the {what} there is not finite")
            for index, row in zip(indices, part, strict=True):
                rows[index] = row
            done += len(indices)
            if progress is not None:
                progress(done / len(task))
    return np.stack([row for row in rows if row is not None])


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients for parameters, as long as the block lasts."""
    training = {module: module.training for module in model.modules()}
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.eval()
    model.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
        for module, mode in training.items():
            module.training = mode
