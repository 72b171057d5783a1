"""The engine that does the work: the one of this process, unless a block of code names another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from headcount.anatomy import device_of
from headcount.engine.work import Arrays, Examples, Progress, Work, attempt


class Engine(Protocol):
    """Does work on shards, anywhere and in any order; what it gives must not depend on where and in which.

    device: the type of the devices that it computes on; None: of the one that the model is on.
    """

    device: str | None

    def run(
        self, work: Work, model: Any, data: Examples, shards: Sequence[Sequence[int]], progress: Progress | None = None
    ) -> Iterator[tuple[int, Arrays]]:
        """Which shard is finished, and its arrays, as soon as it is; progress: called with the share done."""
        ...


class Local:
    """One shard after the other, in this process."""

    device: str | None = None

    def run(
        self, work: Work, model: Any, data: Examples, shards: Sequence[Sequence[int]], progress: Progress | None = None
    ) -> Iterator[tuple[int, Arrays]]:
        for number, indices in enumerate(shards):
            yield number, attempt(work, model, data, indices, part_of(progress, number, len(shards)))
            if progress is not None:
                progress((number + 1) / len(shards))


_current: ContextVar[Engine | None] = ContextVar("engine", default=None)


def current() -> Engine | None:
    """The engine that the surrounding block has named, or None."""
    return _current.get()


def device_type(model: Any) -> str:
    """Of the devices that the model will run on."""
    engine = current()
    return (engine and engine.device) or device_of(model).type


@contextmanager
def using(engine: Engine) -> Iterator[Engine]:
    """Let an engine do all sweeps, scores and roles as long as the block lasts.

    >>> with using(Local()) as engine:
    ...     current() is engine
    True
    """
    token = _current.set(engine)
    try:
        yield engine
    finally:
        _current.reset(token)


def part_of(progress: Progress | None, number: int, count: int) -> Progress | None:
    """The progress within one of several parts."""
    return None if progress is None else lambda share: progress((number + share) / count)
