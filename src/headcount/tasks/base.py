"""What a task is: batches, a loss per example, and a small vector of statistics per example.

Every metric is a function of the *sum* of the statistics, so a sweep over masks is run once and every
interval, paired test and correlation afterwards is arithmetic on numbers that are already there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Some examples, ready for the model.

    >>> batch = Batch({"input_ids": torch.tensor([[5, 6], [7, 0]])}, torch.tensor([1, 0]), (3, 9))
    >>> len(batch), batch.repeat(2).inputs["input_ids"].tolist(), batch.repeat(2).indices
    (2, [[5, 6], [7, 0], [5, 6], [7, 0]], (3, 9, 3, 9))

    inputs: keyword arguments of the model, first dimension = example.
    labels: (B,) class ids, or (B, T) token ids with -100 where nothing is predicted.
    indices: which examples of the task these are.
    """

    inputs: dict[str, Tensor]
    labels: Tensor | None
    indices: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device | str) -> Batch:
        labels = None if self.labels is None else self.labels.to(device)
        return replace(self, inputs={name: x.to(device) for name, x in self.inputs.items()}, labels=labels)

    def repeat(self, times: int) -> Batch:
        """Stacked copies: examples 0..B-1, then again 0..B-1, and so on."""

        def stack(x: Tensor) -> Tensor:
            return x.repeat(times, *[1] * (x.dim() - 1))

        labels = None if self.labels is None else stack(self.labels)
        return Batch({name: stack(x) for name, x in self.inputs.items()}, labels, self.indices * times)


@dataclass(frozen=True)
class Metric:
    """A score computed from summed statistics.

    >>> accuracy = Metric("accuracy", lambda sums: sums[..., 1] / sums[..., 0], points=0.01)
    >>> float(accuracy.of_sums(np.array([4.0, 3.0])))
    0.75

    of_sums: (..., S) summed statistics -> (...) metric, for any leading dimensions at once.
    points: what people call one point: 0.01 for accuracy, 1 for BLEU.
    relative: points are shares of the base value (perplexity, loss): 0.01 is one percent of it.
    signature: how exactly it was computed, e.g. sacrebleu's signature.
    """

    name: str
    of_sums: Callable[[np.ndarray], np.ndarray]
    higher_is_better: bool = True
    points: float = 1.0
    relative: bool = False
    signature: str = ""


class Task(Protocol):
    """What the engine asks of a task; `BaseTask` has a sensible default for most of it."""

    metric: Metric
    generates: bool  # True: statistics() wants what decode() gives; False: what outputs() gives

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens per example as the model will see them."""
        ...

    def batch(self, indices: Sequence[int]) -> Batch:
        """These examples on the CPU, padded to the longest of them."""
        ...

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        """The logits, from exactly one call of the model; differentiable."""
        ...

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(B,) loss of each example; differentiable."""
        ...

    def decode(self, model: Any, batch: Batch) -> Tensor:
        """(B, T) generated token ids, for tasks that generate."""
        ...

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(B, S) float64 on the CPU: what the metric needs to know of each example."""
        ...

    def check(self, model: Any) -> list[str]:
        """Refuse a model that does not fit; otherwise what the user should know (guesses, truncation)."""
        ...

    def signature(self) -> dict[str, Any]:
        """What was measured on what, as plain JSON."""
        ...

    def subset(self, indices: Sequence[int]) -> Task:
        """The same task on some of its examples."""
        ...

    def keys(self) -> list[str]:
        """A hash of each example's input, to find the same rows in two tasks."""
        ...
