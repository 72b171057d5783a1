"""What commands share when they speak: one console, JSON on stdout, and quiet libraries."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

console = Console(highlight=False, soft_wrap=False)
messages = Console(stderr=True, highlight=False)


def print_json(content: dict[str, Any]) -> None:
    """One object on stdout; numbers that JSON does not have (nan) become null."""
    from headcount.engine.plain_json import to_json

    print(to_json(content))


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries' own progress bars and warnings out of our output."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    said = _Said()
    logging.getLogger("headcount").addHandler(said)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.getLogger("headcount").removeHandler(said)


class _Said(logging.Handler):
    """What the library says while it works, such as that it has run out of memory and goes on."""

    def emit(self, record: logging.LogRecord) -> None:
        messages.print(record.getMessage(), style="yellow", markup=False)


@contextmanager
def progress(what: str) -> Iterator[Callable[..., None]]:
    """A bar with the time left, on stderr, for anything longer than two seconds; call it with the share done.

    A second argument says anew what is being done.
    """
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    started = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=messages, transient=True)
    shown = bar.add_task(what, total=1.0)

    def update(share: float, now: str | None = None) -> None:
        if not bar.live.is_started and time.monotonic() - started > 2:
            bar.start()
        bar.update(shown, completed=share, description=now)

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()


def number(value: float, metric: Any) -> str:
    """A score as people write it: .8796 accuracy, 51.0 BLEU."""
    return f"{value:.4f}" if metric.points < 1 or metric.relative else f"{value:.2f}"
