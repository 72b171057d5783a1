"""Time models alternately and under the same conditions: what is timed, the clock, and the memory that they work in."""

from __future__ import annotations

import ctypes
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats as scipy_stats
from torch import Tensor, nn

from headcount.engine import batches_by_length, fast_products
from headcount.errors import HeadcountError
from headcount.export import OnnxModel
from headcount.structure import device_of, start_token
from headcount.tasks import Task

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
SHORTEST = 0.05  # seconds of one measurement; faster things are run several times in a row
LEVEL = 0.95
Inputs = dict[str, Tensor]
State = Any  # what decoding continues from
TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # malloc.h
NAMES = {"trim_threshold": TRIM_THRESHOLD, "mmap_threshold": MMAP_THRESHOLD, "mmap_max": MMAP_MAX, "top_pad": -2}
DEFAULTS = {TRIM_THRESHOLD: 128 * 2**10, MMAP_MAX: 65_536}
GROWN = {TRIM_THRESHOLD: 64 * 2**20, MMAP_THRESHOLD: 32 * 2**20, MMAP_MAX: 65_536}
LARGEST = 2**31 - 1  # what mallopt takes
NEVER = -1  # as a threshold: the largest there is


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
    """An estimate of how long some work of headcount's takes per token of a task, from one batch of it."""
    batches = batches_by_length(task.lengths, tokens)
    indices = batches[len(batches) // 2]
    batch = task.batch(indices).to(device)
    with fast_products():  # as the work itself will
        work(batch)
        started = time.perf_counter()
        work(batch)
        return (time.perf_counter() - started) / max(1, sum(task.lengths[i] for i in indices))


class TorchRunner:
    """A model in PyTorch, optionally compiled."""

    def __init__(self, model: Any, compile: bool = False) -> None:
        self.model = model
        self.generates = bool(model.can_generate())
        self.call = torch.compile(model) if compile else model
        self.device = device_of(model)

    def forward(self, inputs: Inputs) -> Any:
        """One forward pass, without a cache."""
        with torch.inference_mode():
            return self.call(**inputs)

    def prefill(self, inputs: Inputs) -> State:
        """Read the prompt, or let the encoder read the source; the decoder's first step makes its first token."""
        with torch.inference_mode():
            if not self.model.config.is_encoder_decoder:
                output = self.call(**inputs, use_cache=True)
                return output.past_key_values, output.logits[:, -1:].argmax(-1), {}
            source = {name: tensor for name, tensor in inputs.items() if name != "decoder_input_ids"}
            start = torch.full(
                (len(inputs[self.model.main_input_name]), 1), start_token(self.model.config), device=self.device
            )
            output = self.call(**source, decoder_input_ids=start, use_cache=True)
            known: dict[str, Any] = {"encoder_outputs": (output.encoder_last_hidden_state,)}
            if "attention_mask" in source:
                known["attention_mask"] = source["attention_mask"]
            return output.past_key_values, output.logits[:, -1:].argmax(-1), known

    def decode(self, state: State, tokens: int) -> State:
        """Decode this many tokens greedily; an end-of-sequence token does not stop it."""
        cache, ids, known = state
        name = "decoder_input_ids" if known else "input_ids"
        with torch.inference_mode():
            for _ in range(tokens):
                output = self.call(**{name: ids}, past_key_values=cache, use_cache=True, **known)
                cache, ids = output.past_key_values, output.logits[:, -1:].argmax(-1)
        return cache, ids, known

    def cache_bytes(self, state: State) -> int:
        """Bytes of the keys and values that the state holds."""
        cache = state[0]
        both = hasattr(cache, "self_attention_cache")
        parts = [cache.self_attention_cache, cache.cross_attention_cache] if both else [cache]
        layers = [layer for part in parts for layer in part.layers]
        tensors = [tensor for layer in layers for tensor in (layer.keys, layer.values) if tensor is not None]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def sync(self) -> None:
        """Wait until the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()


class OnnxRunner:
    """An export in onnxruntime, on the CPU."""

    def __init__(self, file: str | Path, threads: int | None) -> None:
        self.model = OnnxModel(file, threads)
        self.generates = self.model.generates

    def forward(self, inputs: Inputs) -> Any:
        return self.model.forward(_numpy(inputs))

    def prefill(self, inputs: Inputs) -> State:
        arrays = _numpy(inputs)
        ids = arrays["input_ids"]
        if self.model.decoder is not None:
            ids = arrays.pop("decoder_input_ids")[:, :1]
        logits, state = self.model.step(self.model.begin(arrays), ids)
        return state, logits[:, -1:].argmax(-1)

    def decode(self, state: State, tokens: int) -> State:
        arrays, ids = state
        for _ in range(tokens):
            logits, arrays = self.model.step(arrays, ids)
            ids = logits[:, -1:].argmax(-1)
        return arrays, ids

    def cache_bytes(self, state: State) -> int:
        return sum(array.nbytes for name, array in state[0].items() if name.startswith(("past.", "cross.")))

    def sync(self) -> None:
        """Nothing to wait for: onnxruntime returns when it has finished."""


Runner = TorchRunner | OnnxRunner


def runner_of(model: Any, threads: int | None, compile: bool) -> Runner:
    """A runner for a model, or for the file of an export."""
    if isinstance(model, str | Path):
        if Path(model).suffix != ".onnx":
            raise HeadcountError(f"{model} is not an .onnx file", advice="load a model first, with headcount.load")
        return OnnxRunner(model, threads)
    return TorchRunner(model, compile)


def decoding(runner: Runner, inputs: Inputs, tokens: int, clock: Callable[[], float]) -> Callable[[], float]:
    """A run that prefills again and returns the seconds of the decoding alone."""

    def run() -> float:
        state = runner.prefill(inputs)
        runner.sync()
        start = clock()
        runner.decode(state, tokens)
        runner.sync()
        return clock() - start

    return run


def _numpy(inputs: Inputs) -> dict[str, np.ndarray]:
    return {name: tensor.cpu().numpy() for name, tensor in inputs.items()}


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed memory inside the block, and then restore what can be known of the settings before.

    Another C library than glibc is left as it is.
    """
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    library = ctypes.CDLL(None)
    keeping, restored = plan(settings_of(_environment()))
    for parameter, value in keeping.items():
        library.mallopt(parameter, value)
    try:
        yield
    finally:
        for parameter, value in restored.items():
            library.mallopt(parameter, value)
        library.malloc_trim(0)


def plan(before: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
    """What to set inside the block, and what to set after it, given what the environment has set.

    >>> keeping, restored = plan({MMAP_MAX: 0, TRIM_THRESHOLD: 2**20})  # mmap is not used anyway
    >>> keeping == {TRIM_THRESHOLD: NEVER}, restored == {TRIM_THRESHOLD: 2**20}
    (True, True)
    """
    keeping = {}
    if before.get(MMAP_MAX) != 0:
        keeping[MMAP_MAX] = 0
    if before.get(TRIM_THRESHOLD, 0) <= LARGEST:  # more than 2 GiB is never, for our purpose
        keeping[TRIM_THRESHOLD] = NEVER
    if not before:
        return keeping, dict(GROWN)
    return keeping, {parameter: before.get(parameter, DEFAULTS[parameter]) for parameter in keeping}


def settings_of(environment: Mapping[str, str]) -> dict[int, int]:
    """What glibc's malloc has been set to by the environment, by parameter of `mallopt`.

    >>> settings_of({"GLIBC_TUNABLES": "glibc.malloc.mmap_max=0x10:glibc.rtld.nns=2", "MALLOC_MMAP_MAX_": "3"})
    {-4: 16}
    """
    found: dict[int, int] = {}
    tunables = dict(one.partition("=")[::2] for one in environment.get("GLIBC_TUNABLES", "").split(":"))
    for name, parameter in NAMES.items():
        given = (tunables.get(f"glibc.malloc.{name}"), environment.get(f"MALLOC_{name.upper()}_"))
        for text in given:  # a tunable counts more
            with suppress(ValueError, TypeError):
                found.setdefault(parameter, int(text, 0))  # type: ignore[arg-type]
    return found


def _environment() -> dict[str, str]:
    """The environment that the process was started with; `os.environ` can have been changed since."""
    with suppress(OSError):
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
        return dict(os.fsdecode(entry).partition("=")[::2] for entry in entries if entry)
    return dict(os.environ)
