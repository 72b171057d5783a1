"""Passes over the data that give a row of values per example, or sums of rows: sharded and resumed like any sweep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from headcount.engine import TOKENS, Arrays, Progress, batches_by_length, is_finite, over_shards
from headcount.errors import BadData, HeadcountError
from headcount.heads import Head
from headcount.runs import RunDirectory
from headcount.structure import anatomy, device_of
from headcount.tasks import Batch, Task

PASSES = 3  # the cost of a forward and a backward pass, in forward passes


class PassOptions(TypedDict, total=False):
    """How a pass over the data runs; every method that makes one takes these, and they never change its values.

    tokens: per batch, padding included. run: an open run directory, which keeps finished shards and resumes from them.
    progress: called with the share done, from 0 to 1.
    """

    tokens: int
    run: RunDirectory | None
    progress: Progress | None


def collect(
    model: Any,
    task: Task,
    of_batch: Callable[[Any, Task, Batch], Tensor],
    *,
    what: str,
    sums: bool = False,
    signature: str = "",
    tokens: int = TOKENS,
    run: RunDirectory | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """The values of every example, (examples, …), from a function that gives those of a batch, (B, …).

    >>> from headcount.tasks.classification import toy_classifier
    >>> model, task = toy_classifier()
    >>> shares = lambda model, task, batch: task.outputs(model, batch).softmax(1)
    >>> collect(model, task, shares, what="share").shape
    (2, 2)
    >>> collect(model, task, shares, what="share", sums=True)[0].sum().round(6)
    np.float64(2.0)

    of_batch: called with the model, frozen and in evaluation mode, the task and a batch on the model's device.
    what: the name of the values, in errors about values that are not finite, and of their shards in a run directory.
    sums: return instead the sums over the examples of the values, of their absolute values and of their squares,
        (3, …) in float64; no more than one batch's rows are ever held.
    signature: of the columns; finished shards of others are not taken up.
    tokens, run, progress: see `PassOptions`.
    """
    task.check(model)
    work = (SumPass if sums else ExamplePass)(of_batch, what, tokens)
    found = over_shards(
        work, model, task,
        masks=PASSES, directory=run, name=f"{what}-sums" if sums else what, signature=signature, progress=progress,
    )  # fmt: skip
    return found["sums" if sums else "rows"]


@dataclass(frozen=True)
class ExamplePass:
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
        for indices, part in self.parts(model, examples, progress):
            for index, row in zip(indices, part, strict=True):
                rows[index] = row
        return {"rows": np.stack([row for row in rows if row is not None])}

    def parts(self, model: Any, examples: Task, progress: Progress | None) -> Iterator[tuple[list[int], np.ndarray]]:
        """The examples of each batch, and their rows (B, …), all finite."""
        device, done = device_of(model), 0
        with frozen(model):
            for indices in batches_by_length(examples.lengths, self.tokens):
                part = self.of_batch(model, examples, examples.batch(indices).to(device)).float().cpu().numpy()
                bad = np.flatnonzero(~np.isfinite(part.reshape(len(part), -1)).all(1))
                if len(bad):
                    example = indices[int(bad[0])]
                    places = getattr(examples, "places", None)
                    where = places[example] if places else f"example {example}"
                    raise BadData(f"{where}: the {self.what} is not finite")
                yield indices, part
                done += len(indices)
                if progress is not None:
                    progress(done / len(examples))


class SumPass(ExamplePass):
    """The same pass; of its rows it keeps only running sums."""

    def summed(self, name: str) -> bool:
        return True

    def fits(self, arrays: Arrays, count: int) -> bool:
        return set(arrays) == {"sums"} and arrays["sums"].shape[:1] == (3,) and is_finite(arrays["sums"])

    def __call__(self, model: Any, examples: Task, progress: Progress | None = None) -> Arrays:
        sums: Any = 0.0
        for _, part in self.parts(model, examples, progress):
            sums = sums + np.stack([
                part.sum(0, dtype=np.float64),
                np.abs(part).sum(0, dtype=np.float64),
                np.square(part, dtype=np.float64).sum(0),
            ])  # fmt: skip
        return {"sums": sums}


def units_to_score(model: nn.Module, units: str | Iterable[str] = "heads") -> tuple[Head | str, ...]:
    """The model's units of these kinds; a model without any is refused."""
    found = anatomy(model, units)
    if not found.units:
        what = " and ".join("attention heads" if one == "heads" else one for one in found.asked)
        raise HeadcountError(f"the model has no {what} left to score")
    return found.units


@contextmanager
def needs_task_head(model: nn.Module, what: str) -> Iterator[None]:
    """Say that a model was loaded without the head of its task, if that is why the block cannot compute `what`."""
    try:
        yield
    except (AttributeError, NotImplementedError) as error:
        raise HeadcountError(
            f"{type(model).__name__} gives no {what} ({error}); "
            "load it with the head of its task, for example …ForSequenceClassification"
        ) from error


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Evaluation mode, and no gradients for parameters, for the block; then everything as it was."""
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
