"""Work, and the engines that do it: the same function on one shard of the data after another, here or elsewhere.

Within a shard, examples of similar length form batches under a budget of tokens: nothing is padded to a maximum.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np
import torch

from headcount.engine.products import fast_products
from headcount.errors import HeadcountError, first_line
from headcount.structure import anatomy, device_of

Arrays = dict[str, np.ndarray]
Progress = Callable[[float], None]
log = logging.getLogger("headcount")
TOKENS = 2048  # per batch, where nothing better is known
CACHE, MEMORY = 8 * 2**20, 512 * 2**20  # bytes of the widest activation: a CPU's cache decides, elsewhere the memory


class Examples(Protocol):
    """What can be cut into shards: a `Task`, or sentences."""

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> Sequence[int]: ...

    def subset(self, indices: Sequence[int]) -> Any: ...


class Work(Protocol):
    """A function of a model and some examples that any worker can do.

    It gives named arrays: one row for each example, in their order, or sums over the examples.
    """

    @property
    def tokens(self) -> int:
        """Per batch, padding included: shards are cut, and cut again, along the borders of batches."""
        ...

    def summed(self, name: str) -> bool:
        """Whether the array of this name is a sum."""
        ...

    def fits(self, arrays: Arrays, count: int) -> bool:
        """Whether arrays from a file can be what this work gives for `count` examples."""
        ...

    def __call__(self, model: Any, examples: Any, progress: Progress | None = None) -> Arrays: ...


class Engine(Protocol):
    """Does work on shards, anywhere and in any order; the results must not depend on either.

    device: the type of the devices that it computes on; None: of the one that the model is on.
    """

    device: str | None

    def run(
        self, work: Work, model: Any, data: Examples, shards: Sequence[Sequence[int]], progress: Progress | None = None
    ) -> Iterator[tuple[int, Arrays]]:
        """The number of each shard and its arrays, as soon as it is finished; progress: called with the share done."""
        ...


class Local:
    """One shard after the other, in this process."""

    device: str | None = None

    def run(
        self, work: Work, model: Any, data: Examples, shards: Sequence[Sequence[int]], progress: Progress | None = None
    ) -> Iterator[tuple[int, Arrays]]:
        for number, indices in enumerate(shards):
            yield number, attempt(work, model, data, indices, _part_of(progress, number, len(shards)))
            if progress is not None:
                progress((number + 1) / len(shards))


_current: ContextVar[Engine | None] = ContextVar("engine", default=None)


@contextmanager
def using(engine: Engine | None) -> Iterator[Engine | None]:
    """Let an engine do all sweeps, scores and roles as long as the block lasts; None changes nothing.

    >>> with using(Local()) as engine:
    ...     current() is engine
    True
    """
    token = _current.set(engine or current())
    try:
        yield engine
    finally:
        _current.reset(token)


def current() -> Engine | None:
    """The engine that the surrounding block has named, or None."""
    return _current.get()


def device_type(model: Any) -> str:
    """The type of the devices that the model will run on."""
    engine = current()
    return (engine and engine.device) or device_of(model).type


def attempt(work: Work, model: Any, data: Examples, indices: Sequence[int], progress: Progress | None = None) -> Arrays:
    """Do the work on these examples (a range: on all); on half of them at a time where they do not fit into memory."""
    try:
        with fast_products():
            return work(model, data if isinstance(indices, range) else data.subset(indices), progress)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = first_line(error)
    halves = split(work, data, indices, reason)  # outside of `except`: an error keeps its frames' tensors alive
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return join(work, [attempt(work, model, data, half) for half in halves])


def split(work: Work, data: Examples, indices: Sequence[int], reason: str) -> tuple[list[int], list[int]]:
    """Two halves of a shard that did not fit into memory, between two batches if it has more than one."""
    if len(indices) < 2:
        raise HeadcountError(
            f"one example of {data.lengths[indices[0]]} tokens does not fit into memory ({reason})",
            advice="cut texts with {max_length}, or use a machine with more memory",
        )
    batches = batches_by_length([data.lengths[index] for index in indices], work.tokens)
    middle = sum(map(len, batches[: len(batches) // 2])) or len(indices) // 2
    log.warning("out of memory on %d examples (%s): trying again with half of them at a time", len(indices), reason)
    return list(indices[:middle]), list(indices[middle:])


def join(work: Work, parts: Sequence[Arrays]) -> Arrays:
    """The arrays of consecutive examples as those of all of them."""
    if len(parts) == 1:
        return parts[0]
    return {
        name: np.sum([part[name] for part in parts], axis=0)
        if work.summed(name)
        else np.concatenate([part[name] for part in parts])
        for name in parts[0]
    }


def is_finite(array: np.ndarray) -> bool:
    """Whether an array holds floating-point numbers, none of them infinite or nan."""
    return array.dtype.kind == "f" and bool(np.isfinite(array).all())


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the memory of the device, or of the machine, has run out.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("shapes do not match"))
    (True, False)
    """
    known = ("can't allocate memory", "out of memory", "not enough memory")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(part in str(error) for part in known)


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """The warnings that headcount logs in a block, to be repeated in another process.

    >>> with collected_warnings() as messages:
    ...     log.warning("out of memory on %d examples", 5)
    >>> messages
    ['out of memory on 5 examples']
    """
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        yield messages
    finally:
        log.removeHandler(handler)


def _part_of(progress: Progress | None, number: int, count: int) -> Progress | None:
    """The progress within one of several parts."""
    return None if progress is None else lambda share: progress((number + share) / count)


def tokens_for(model: Any, device: str | None = None) -> int:
    """How many tokens to run at a time: on a CPU as many as keep a layer's widest activation in the cache.

    device: the type of device that will run it, if not the model's own.
    """
    hidden = max((site.output.weight.shape[-1] for site in anatomy(model).sites), default=1)
    budget = CACHE if (device or device_of(model).type) == "cpu" else MEMORY
    tokens = max(256, budget // (4 * 4 * max(1, hidden)))  # feed-forward layers are four times as wide, in float32
    head: Any = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    vocabulary = 1 if getattr(head, "weight", None) is None else head.weight.shape[0]
    return max(64, min(tokens, MEMORY // (4 * vocabulary)))  # the logits of a language model must fit as well


def batches_by_length(lengths: Sequence[int], tokens: int = TOKENS) -> list[list[int]]:
    """Cut examples, sorted by length, into batches of at most `tokens` tokens, padding included.

    >>> batches_by_length([9, 2, 3, 8], tokens=16)
    [[1, 2], [3], [0]]
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (lengths[i], i)):
        width = max(1, lengths[index])  # the longest so far
        if batches and width * (len(batches[-1]) + 1) <= tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches
