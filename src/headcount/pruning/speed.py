"""How much faster a pruned model is, measured here and now, with both models in turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from headcount.anatomy import device_of
from headcount.bench.timing import interleaved, middle
from headcount.evaluate.batches import batches_by_length
from headcount.tasks import Task


@dataclass(frozen=True)
class Speed:
    """Examples per second before and after, and how many times faster: the median over interleaved repeats."""

    before: float
    after: float
    speedup: float
    low: float
    high: float


def measure_speed(whole: nn.Module, pruned: nn.Module, task: Task, *, rounds: int = 9, examples: int = 32) -> Speed:
    """Time both models on the same batch of the task, in turns.

    low, high: 95% interval of the median ratio. What a task generates is not timed, only one forward pass;
    `headcount bench` measures more.
    """
    by_length = sorted(range(len(task)), key=lambda i: task.lengths[i])
    middle_one = max(0, len(by_length) // 2 - examples // 2)
    device = device_of(whole)
    batch = task.batch(by_length[middle_one : middle_one + examples]).to(device)

    def once(model: Any) -> float:
        started = time.perf_counter()
        with torch.inference_mode():
            task.outputs(model, batch)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    runs = [partial(once, model.eval()) for model in (whole, pruned)]
    interleaved(runs, 1)  # to warm up
    seconds = interleaved(runs, rounds)  # (2, rounds)
    ratio = middle(seconds[0] / seconds[1])
    before, after = (len(batch) / middle(each).value for each in seconds)
    return Speed(before, after, ratio.value, ratio.low, ratio.high)


def seconds_per_token(task: Task, work: Callable[[Any], Any], device: torch.device, tokens: int = 1024) -> float:
    """About how long some work takes per token of a task, from one batch of it."""
    batches = batches_by_length(task.lengths, tokens)
    indices = batches[len(batches) // 2]
    batch = task.batch(indices).to(device)
    work(batch)
    started = time.perf_counter()
    work(batch)
    return (time.perf_counter() - started) / max(1, sum(task.lengths[i] for i in indices))
