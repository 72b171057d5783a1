"""One place of a benchmark: a batch size and a length, all models in turns, as rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from headcount.bench.flops import count_flops
from headcount.bench.runners import Inputs, Runner, TorchRunner, decoding
from headcount.bench.timing import CLOCKS, interleaved, middle, repeated
from headcount.bench.verdict import Row
from headcount.errors import HeadcountError, first_line
from headcount.surgery.dummy import random_inputs

Tick = Callable[[], None]


def forward_rows(
    runners: dict[str, Runner], inputs: Inputs, rounds: int, clock: str, warmup: int, flops: dict[str, int], tick: Tick
) -> list[Row]:
    """Examples per second of a forward pass, or of a generator's prefill."""
    runs = []
    for name, runner in runners.items():
        work = partial(once, runner, inputs)
        try:
            runs.append(repeated(work, clock, runner.sync, warmup))
        except (RuntimeError, ValueError, TypeError, LookupError) as error:
            sizes = ", ".join(f"{key} {list(value.shape)}" for key, value in inputs.items())
            raise HeadcountError(f"{name} does not run on random inputs ({sizes}): {first_line(error)}") from error
    return _rows(list(runners), interleaved(runs, rounds, tick), inputs, flops)


def decoding_rows(
    runners: dict[str, Runner], inputs: Inputs, rounds: int, clock: str, tokens: int, flops: dict[str, int], tick: Tick
) -> list[Row]:
    """Tokens per second of decoding after the prefill, and the size of the cache at its end."""
    caches = [runner.cache_bytes(runner.decode(runner.prefill(inputs), tokens)) for runner in runners.values()]
    runs = [decoding(runner, inputs, tokens, CLOCKS[clock]) for runner in runners.values()]
    return _rows(list(runners), interleaved(runs, rounds, tick), inputs, flops, tokens, caches)


def once(runner: Runner, inputs: Inputs) -> Any:
    """A forward pass; of a generator, its prefill."""
    return runner.prefill(inputs) if runner.generates else runner.forward(inputs)


def flops_of(named: dict[str, Any], first: Any, length: int, tokens: int | None = None) -> dict[str, int]:
    """FLOPs of one example, by name, for what runs in PyTorch: of `once`, or of decoding so many tokens after it."""
    inputs = random_inputs(first, 1, length)
    counted: dict[str, int] = {}
    for name, model in named.items():
        if not hasattr(model, "forward"):
            continue
        runner = TorchRunner(model)
        if tokens is None:
            counted[name] = count_flops(lambda runner=runner: once(runner, inputs))  # type: ignore[misc]
        else:
            state = runner.prefill(inputs)
            counted[name] = count_flops(lambda runner=runner, state=state: runner.decode(state, tokens))  # type: ignore[misc]
    return counted


def _rows(
    names: list[str],
    seconds: np.ndarray,
    inputs: Inputs,
    flops: dict[str, int],
    tokens: int | None = None,
    caches: list[int] | None = None,
) -> list[Row]:
    """A row for each model but the first, beside the first; a row of its own for a model alone.

    seconds: (models, rounds). A speedup is the median over rounds of the two models' ratio in the same round.
    """
    batch, length = len(next(iter(inputs.values()))), _length(inputs)
    done = batch * (tokens or 1)
    latency = [float(np.median(row)) for row in seconds]
    base: dict[str, Any] = {"batch": batch, "length": length, "tokens": tokens, "original": done / latency[0]}
    base |= {"latency_original": latency[0], "cache_original": caches[0] if caches else None}
    if len(names) == 1:
        return [Row(model=names[0], **base)]
    rows = []
    for index, name in enumerate(names[1:], start=1):
        ratio = middle(seconds[0] / seconds[index])
        rows.append(
            Row(
                model=name,
                **base,
                pruned=done / latency[index],
                speedup=ratio.value,
                low=ratio.low,
                high=ratio.high,
                limit=flops[names[0]] / flops[name] if flops.get(name) else None,
                latency_pruned=latency[index],
                cache_pruned=caches[index] if caches else None,
            )
        )
    return rows


def _length(inputs: Inputs) -> int:
    """Tokens of a text; of an image or a sound, its last dimension."""
    return (inputs.get("input_ids", next(iter(inputs.values())))).shape[-1]
