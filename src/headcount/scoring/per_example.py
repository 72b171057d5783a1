"""Passes over the data in batches: the model frozen, one row of values per example, in the order of the examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headcount.engine import TOKENS, Arrays, batches_by_length, is_finite, over_shards
from headcount.errors import BadData, HeadcountError
from headcount.runs import RunDirectory
from headcount.structure import anatomy, device_of
from headcount.tasks import Batch, Task

Progress = Callable[[float], None]
PASSES = 3  # forward and backward, in forward passes


def collect(
    model: Any,
    task: Task,
    of_batch: Callable[[Any, Task, Batch], Tensor],
    *,
    what: str,
    tokens: int = TOKENS,
    run: RunDirectory | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """What `of_batch` gives for every batch, (B, …) with as many columns each time, as one array (examples, …).

    what: the name of the values, for the refusal of those that are no numbers, and of their shards in a run directory.
    tokens: per batch of the computation, padding included; changes nothing but memory.
    run: an open run directory, in which finished shards are kept and found again.
    """
    task.check(model)
    if not anatomy(model).heads:
        raise HeadcountError("the model has no attention heads left: there is nothing to score")
    work = Rows(of_batch, what, tokens)
    return over_shards(work, model, task, masks=PASSES, directory=run, name=what, progress=progress)["rows"]


@dataclass(frozen=True)
class Rows:
    """A pass over some of the data, as work for an engine."""

    of_batch: Callable[[Any, Task, Batch], Tensor]
    what: str
    tokens: int

    def summed(self, name: str) -> bool:
        return False

    def fits(self, arrays: Arrays, count: int) -> bool:
        return set(arrays) == {"rows"} and arrays["rows"].shape[:1] == (count,) and is_finite(arrays["rows"])

    def __call__(self, model: Any, examples: Task, progress: Progress | None = None) -> Arrays:
        rows: list[np.ndarray | None] = [None] * len(examples)
        device, done = device_of(model), 0
        with frozen(model):
            for indices in batches_by_length(examples.lengths, self.tokens):
                part = self.of_batch(model, examples, examples.batch(indices).to(device)).float().cpu().numpy()
                bad = np.flatnonzero(~np.isfinite(part.reshape(len(part), -1)).all(1))
                if len(bad):
                    example = indices[int(bad[0])]
                    place = getattr(examples, "places", None)
                    where = place[example] if place else f"example {example}"
                    raise BadData(f"{where}: the {self.what} there is not finite")
                for index, row in zip(indices, part, strict=True):
                    rows[index] = row
                done += len(indices)
                if progress is not None:
                    progress(done / len(examples))
        return {"rows": np.stack([row for row in rows if row is not None])}


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients for parameters, as long as the block lasts."""
    training = {module: module.training for module in model.modules()}
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    model.eval()
    model.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in trainable)
        for module, mode in training.items():
            module.training = mode
