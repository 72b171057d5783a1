"""Time several things alternately, so that whatever else the machine does slows all of them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import stats as scipy_stats
from torch import nn

from headcount.engine import batches_by_length
from headcount.structure import device_of
from headcount.tasks import Task

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
SHORTEST = 0.05  # seconds of one measurement; faster things are run several times in a row
LEVEL = 0.95


@dataclass(frozen=True)
class Median:
    """A median and its 95% interval, which assumes nothing about the distribution of the values."""

    value: float
    low: float
    high: float


def median(values: Sequence[float] | np.ndarray) -> Median:
    """The median with its interval from order statistics; for fewer than six values, from the least to the greatest.

    >>> median([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    Median(value=4.0, low=1.0, high=7.0)
    """
    values = np.asarray(values, float)
    value = float(np.median(values))
    interval: Any = scipy_stats.quantile_test(values, q=value, p=0.5).confidence_interval(LEVEL)
    low = values.min() if np.isnan(interval.low) else interval.low
    high = values.max() if np.isnan(interval.high) else interval.high
    return Median(value, float(low), float(high))


def interleaved(
    runs: Sequence[Callable[[], float]], rounds: int, done: Callable[[], None] = lambda: None
) -> np.ndarray:
    """Seconds of each run in each round, (runs, rounds); the order is reversed from round to round.

    runs: each does its work once and returns the seconds that count. done: called after each.
    """
    seconds = np.empty((len(runs), rounds))
    order = list(range(len(runs)))
    for number in range(rounds):
        for index in order if number % 2 == 0 else reversed(order):
            seconds[index, number] = runs[index]()
            done()
    return seconds


def repeated(work: Callable[[], object], clock: str, sync: Callable[[], None], warmup: int) -> Callable[[], float]:
    """Warm up, then make a run that takes at least `SHORTEST` seconds and returns the seconds of one call."""
    now = CLOCKS[clock]
    for _ in range(max(1, warmup)):
        sync()
        start = time.perf_counter()
        work()
        sync()
        once = time.perf_counter() - start
    times = max(1, min(1000, round(SHORTEST / max(once, 1e-6))))

    def run() -> float:
        sync()
        start = now()
        for _ in range(times):
            work()
        sync()
        return (now() - start) / times

    return run


@contextmanager
def fixed_threads(threads: int | None) -> Iterator[int]:
    """Fix the number of PyTorch's threads inside the block, and say what it is; None leaves it."""
    before = torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Speed:
    """Examples per second before and after, and the speedup with its 95% interval, over interleaved rounds."""

    before: float
    after: float
    speedup: float
    low: float
    high: float


def measure_speed(whole: nn.Module, pruned: nn.Module, task: Task, *, rounds: int = 9, examples: int = 32) -> Speed:
    """Time both models on the same batch of the task, alternately: one forward pass, without decoding.

    low, high: 95% interval of the median ratio. `benchmark` measures more.
    """
    by_length = sorted(range(len(task)), key=lambda i: task.lengths[i])
    start = max(0, len(by_length) // 2 - examples // 2)  # texts of median length
    device = device_of(whole)
    batch = task.batch(by_length[start : start + examples]).to(device)

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
    ratio = median(seconds[0] / seconds[1])
    before, after = (len(batch) / median(each).value for each in seconds)
    return Speed(before, after, ratio.value, ratio.low, ratio.high)


def seconds_per_token(task: Task, work: Callable[[Any], Any], device: torch.device, tokens: int = 1024) -> float:
    """An estimate of how long some work takes per token of a task, from one batch of it."""
    batches = batches_by_length(task.lengths, tokens)
    indices = batches[len(batches) // 2]
    batch = task.batch(indices).to(device)
    work(batch)
    started = time.perf_counter()
    work(batch)
    return (time.perf_counter() - started) / max(1, sum(task.lengths[i] for i in indices))
