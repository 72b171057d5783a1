"""`benchmark`: the original and the pruned model side by side, interleaved, beside the limit that FLOPs set."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from headcount.bench.cost import ModelSize, count_flops, size_of
from headcount.bench.timing import (
    CLOCKS,
    Inputs,
    Runner,
    TorchRunner,
    decoding,
    fixed_threads,
    interleaved,
    kept_memory,
    median,
    repeated,
    runner_of,
)
from headcount.errors import HeadcountError, counted, first_line, unknown
from headcount.reporting import Shown
from headcount.runs import model_signature, versions
from headcount.structure import embedding_rows, position_limit, random_inputs

BATCHES, LENGTH, ROUNDS, TOKENS = (1, 4, 16, 64), 128, 7, 16

Tick = Callable[[], None]
SMALL = 0.02  # a smaller change does not count, however certain it is
LARGE = 0.5  # from here on, gains are written as times instead of percent


@dataclass(frozen=True)
class Benchmark(Shown):
    """The results of `benchmark`.

    rows: forward passes, or a generator's prefill, in examples per second. decoding: in tokens per second.
    sizes: of each model, by name. threads, clock, rounds, compiled: how it was measured.
    """

    rows: tuple[SpeedRow, ...]
    decoding: tuple[SpeedRow, ...]
    sizes: dict[str, ModelSize]
    threads: int
    clock: str
    rounds: int
    compiled: bool
    signature: dict[str, Any]

    def __repr__(self) -> str:
        return f"<benchmark of {', '.join(self.sizes)}: {self.verdict or counted(len(self.rows), 'row')}>"

    @property
    def verdict(self) -> str:
        """What the numbers mean: one line per model and kind of work."""
        sentences = []
        for kind, rows in (("", self.rows), ("decoding: ", self.decoding)):
            for name in dict.fromkeys(row.model for row in rows if row.speedup is not None):
                said = verdict([row for row in rows if row.model == name])
                sentences.append(f"{'' if name == 'pruned' else f'{name}: '}{kind}{said}")
        return "\n".join(sentences)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        found = asdict(self)
        signature = found.pop("signature")
        return {**found, "verdict": self.verdict, "signature": signature}


def benchmark(
    models: Any,
    *,
    batches: Sequence[int] = BATCHES,
    lengths: Sequence[int] | None = None,
    task: Any = None,
    rounds: int = ROUNDS,
    tokens: int = TOKENS,
    warmup: int = 2,
    threads: int | None = None,
    clock: str = "wall",
    compile: bool = False,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Benchmark:
    """Measure models side by side: the first is the original, each other one is compared with it.

    >>> from transformers import BertConfig, BertModel
    >>> from headcount import remove
    >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64))
    >>> pruned = remove(model, ["encoder.0.0", "encoder.0.1", "encoder.1.2", "encoder.1.3"])
    >>> result = benchmark([model, pruned], batches=[1, 2], lengths=[8], rounds=2)
    >>> [(row.batch, row.length, round(row.limit, 2)) for row in result.rows]
    [(1, 8, 1.36), (2, 8, 1.36)]

    models: one model, a list (original, pruned, …) or a dictionary by name; the path of an .onnx file is a model, too.
    lengths: in tokens; by default the median and the 95% quantile of the task's texts, or 128 without a task.
    rounds: measurements of each model, interleaved; at least six for a 95% interval.
    tokens: to decode after the prompt, for a generator. threads: of PyTorch and onnxruntime, the same for all models.
    clock: "wall", or "cpu": the time of this process, for a shared machine; with one thread only.
    compile: compile every model with `torch.compile`. progress: called with the measurements done and their number.
    """
    named = _named(models)
    first = next(iter(named.values()))
    _check(batches, rounds, tokens, clock)
    lengths = _lengths(first, lengths, task, tokens)
    places = [(batch, length) for length in lengths for batch in batches]
    done, of = 0, len(places) * len(named) * rounds * (2 if first.can_generate() else 1)
    rows: list[SpeedRow] = []
    decoded: list[SpeedRow] = []

    def tick() -> None:
        nonlocal done
        progress(done := done + 1, of)

    with fixed_threads(threads) as fixed, kept_memory(), _evaluating(named):
        if clock == "cpu" and fixed != 1:
            raise HeadcountError(
                f"processor time says how fast one thread is, not {fixed}",
                advice="set {threads} to 1, or {clock} to wall",
            )
        runners = {name: runner_of(model, fixed, compile) for name, model in named.items()}
        generate = all(runner.generates for runner in runners.values())
        flops = {length: flops_of(named, first, length) for length in lengths}
        decoding = {length: flops_of(named, first, length, tokens) for length in lengths if generate}
        for batch, length in places:
            inputs = random_inputs(first, batch, length)
            rows += forward_rows(runners, inputs, rounds, clock, warmup, flops[length], tick)
            if generate:
                decoded += decoding_rows(runners, inputs, rounds, clock, tokens, decoding[length], tick)
        largest = random_inputs(first, max(batches), max(lengths))
        sizes = {
            name: size_of(model, lambda model=model: once(TorchRunner(model), largest))  # type: ignore[misc]
            for name, model in named.items()
        }
    signature = {"model": model_signature(first), "versions": versions(), "machine": platform.machine()}
    return Benchmark(tuple(rows), tuple(decoded), sizes, fixed, clock, rounds, compile, signature)


def _named(models: Any) -> dict[str, Any]:
    if isinstance(models, Mapping):
        named = dict(models)
    else:
        listed = list(models) if isinstance(models, list | tuple) else [models]
        second = "pruned" if len(listed) > 1 and is_cut_of(listed[0], listed[1]) else "model 2"
        names = ["original", second, *(f"model {number}" for number in range(3, len(listed) + 1))]
        named = dict(zip(names, listed, strict=False))
    if not named:
        raise HeadcountError("no model was given", advice="pass {models}")
    if not hasattr(next(iter(named.values())), "can_generate"):
        first = type(next(iter(named.values()))).__name__
        raise HeadcountError(f"the first model must be a transformers model, to compare the others with; got {first}")
    return named


def is_cut_of(whole: Any, other: Any) -> bool:
    """Whether a model can be what is left of another one: of its class, with its tensors, some smaller, none larger."""
    if (
        not (hasattr(whole, "state_dict") and hasattr(other, "state_dict"))
        or type(whole).__name__ != type(other).__name__
    ):
        return False
    shapes = {name: tensor.shape for name, tensor in whole.state_dict().items()}
    left = {name: tensor.shape for name, tensor in other.state_dict().items()}
    if left == shapes or embedding_rows(whole) != embedding_rows(other) or not left.keys() <= shapes.keys():
        return False
    pairs = [(shape, shapes[name]) for name, shape in left.items()]
    return all(len(a) == len(b) and all(m <= n for m, n in zip(a, b, strict=True)) for a, b in pairs)


def _check(batches: Sequence[int], rounds: int, tokens: int, clock: str) -> None:
    if clock not in CLOCKS:
        raise HeadcountError(unknown("clock", clock, CLOCKS))
    for what, values in (("batch size", batches), ("number of rounds", [rounds]), ("number of tokens", [tokens])):
        if not len(values) or any(value < 1 for value in values):
            raise HeadcountError(f"a {what} must be at least 1; got {', '.join(map(str, values)) or 'none'}")


def _lengths(model: Any, lengths: Sequence[int] | None, task: Any, tokens: int) -> list[int]:
    """The lengths to measure at: those given, those of the data, or 128, within the model's positions."""
    most = position_limit(model)
    room = most if most is None or not model.can_generate() or model.config.is_encoder_decoder else most - tokens
    if lengths is not None:
        for length in lengths:
            if length < 1 or (room is not None and length > room):
                limit = "at least 1" if room is None else f"1 to {room}"
                beside = "" if room == most else f" beside the {tokens} that it decodes"
                raise HeadcountError(f"length {length} cannot be measured: the model takes {limit} tokens{beside}")
        return sorted(set(lengths))
    if task is not None:
        seen = np.asarray(task.lengths)
        wanted = {round(float(np.median(seen))), round(float(np.quantile(seen, 0.95)))}
    else:
        wanted = {LENGTH}
    return sorted({max(1, length if room is None else min(length, room)) for length in wanted})


@contextmanager
def _evaluating(named: dict[str, Any]) -> Iterator[None]:
    models = [(model, model.training) for model in named.values() if hasattr(model, "training")]
    try:
        for model, _ in models:
            model.eval()
        yield
    finally:
        for model, training in models:
            model.train(training)


def forward_rows(
    runners: dict[str, Runner], inputs: Inputs, rounds: int, clock: str, warmup: int, flops: dict[str, int], tick: Tick
) -> list[SpeedRow]:
    """Examples per second of a forward pass, or of a generator's prefill."""
    runs = []
    for name, runner in runners.items():
        work = partial(once, runner, inputs)
        try:
            runs.append(repeated(work, clock, runner.sync, warmup))
        except (RuntimeError, ValueError, TypeError, LookupError) as error:
            sizes = ", ".join(f"{key} {list(value.shape)}" for key, value in inputs.items())
            raise HeadcountError(f"{name} does not run on random inputs ({sizes}): {first_line(error)}") from error
    return rows_of(list(runners), interleaved(runs, rounds, tick), inputs, flops)


def decoding_rows(
    runners: dict[str, Runner], inputs: Inputs, rounds: int, clock: str, tokens: int, flops: dict[str, int], tick: Tick
) -> list[SpeedRow]:
    """Tokens per second of decoding after the prefill, and the size of the cache at its end."""
    caches = [runner.cache_bytes(runner.decode(runner.prefill(inputs), tokens)) for runner in runners.values()]
    runs = [decoding(runner, inputs, tokens, CLOCKS[clock]) for runner in runners.values()]
    return rows_of(list(runners), interleaved(runs, rounds, tick), inputs, flops, tokens, caches)


def once(runner: Runner, inputs: Inputs) -> Any:
    """A forward pass; of a generator, its prefill."""
    return runner.prefill(inputs) if runner.generates else runner.forward(inputs)


def flops_of(named: dict[str, Any], first: Any, length: int, tokens: int | None = None) -> dict[str, int]:
    """FLOPs of one example, of `once` or of decoding this many tokens after it, by name.

    Of models in PyTorch that were cut from the first: for others, FLOPs set no limit to the speedup.
    """
    inputs = random_inputs(first, 1, length)
    counted: dict[str, int] = {}
    for name, model in named.items():
        if model is not first and not is_cut_of(first, model):
            continue
        runner = TorchRunner(model)
        if tokens is None:
            counted[name] = count_flops(lambda runner=runner: once(runner, inputs))  # type: ignore[misc]
        else:
            state = runner.prefill(inputs)
            counted[name] = count_flops(lambda runner=runner, state=state: runner.decode(state, tokens))  # type: ignore[misc]
    return counted


def rows_of(
    names: list[str],
    seconds: np.ndarray,
    inputs: Inputs,
    flops: dict[str, int],
    tokens: int | None = None,
    caches: list[int] | None = None,
) -> list[SpeedRow]:
    """A row for each model but the first, compared with the first; one row for a single model.

    seconds: (models, rounds). A speedup is the median over rounds of the two models' ratio in the same round.
    """
    batch, length = len(next(iter(inputs.values()))), _length(inputs)
    done = batch * (tokens or 1)
    latency = [float(np.median(row)) for row in seconds]
    base: dict[str, Any] = {"batch": batch, "length": length, "tokens": tokens, "original": done / latency[0]}
    base |= {"latency_original": latency[0], "cache_original": caches[0] if caches else None}
    if len(names) == 1:
        return [SpeedRow(model=names[0], **base)]
    rows = []
    for index, name in enumerate(names[1:], start=1):
        ratio = median(seconds[0] / seconds[index])
        rows.append(
            SpeedRow(
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


@dataclass(frozen=True)
class SpeedRow:
    """Two models side by side at one batch size and length: examples (or decoded tokens) per second.

    speedup, low, high: how many times as fast, with its 95% interval. limit: the ratio of counted FLOPs.
    latency: median seconds per batch. cache: bytes of keys and values at the end.
    """

    model: str
    batch: int
    length: int
    original: float
    pruned: float | None = None
    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    latency_original: float | None = None
    latency_pruned: float | None = None
    tokens: int | None = None
    cache_original: int | None = None
    cache_pruned: int | None = None


def verdict(rows: Sequence[SpeedRow]) -> str:
    """Say where the second model is faster, by how much, and how much FLOPs would allow.

    >>> fast = SpeedRow("pruned", 16, 128, 50, 60.5, 1.21, 1.19, 1.23, 1.23)
    >>> verdict([fast, SpeedRow("pruned", 1, 128, 50, 50, 1.0, 0.97, 1.04, 1.23)])
    'faster by 21% (limit 23%) at batch 16; no gain at batch 1'
    >>> verdict([SpeedRow("pruned", 16, 128, 50, 105, 2.1, 2.0, 2.2, 2.4)])
    '2.10 times as fast (limit 2.40) at batch 16'

    A speedup counts if it is at least 2% and its whole interval lies above 1. An interval that is too wide to tell is
    called so.
    """
    compared = [row for row in rows if row.speedup is not None]
    several = len({row.length for row in compared}) > 1
    in_times = any((row.speedup or 0.0) - 1 >= LARGE for row in compared)
    places: dict[tuple[int, str], list[str]] = {}
    for row in compared:
        places.setdefault(_finding(row, in_times), []).append(_place(row, several))
    found = sorted(places, key=lambda finding: finding[0])  # stable: batches stay in their order
    return "; ".join(f"{finding[1]} at {_joined(places[finding])}" for finding in found)


def _finding(row: SpeedRow, in_times: bool) -> tuple[int, str]:
    """What one row shows, after its place in the sentence: faster, too noisy, no gain, slower."""
    assert row.speedup is not None
    assert row.low is not None
    assert row.high is not None
    gain = row.speedup - 1
    if row.low > 1 and gain >= SMALL and in_times:
        return 0, f"{row.speedup:.2f} times as fast" + ("" if row.limit is None else f" (limit {row.limit:.2f})")
    if row.low > 1 and gain >= SMALL:
        return 0, f"faster by {gain:.0%}" + ("" if row.limit is None else f" (limit {row.limit - 1:.0%})")
    if row.high < 1 and gain <= -SMALL:
        return 3, f"slower by {1 - row.speedup:.0%}"
    if row.high - row.low > 4 * SMALL and row.high - 1 >= SMALL:
        return 1, f"too noisy to tell ({row.low - 1:+.0%} to {row.high - 1:+.0%})"
    return 2, "no gain"


def _place(row: SpeedRow, several: bool) -> str:
    return f"batch {row.batch}" + (f", length {row.length}" if several else "")


def _joined(places: list[str]) -> str:
    if all("," not in place for place in places):
        places = [places[0], *(place.removeprefix("batch ") for place in places[1:])]
        return " and ".join(filter(None, [", ".join(places[:-1]), places[-1]]))
    return " and at ".join(places)
