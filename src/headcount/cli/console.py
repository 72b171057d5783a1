"""What commands print with: one console, JSON, progress bars, tables, and libraries kept quiet."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

console = Console(highlight=False, soft_wrap=False)
messages = Console(stderr=True, highlight=False)


def print_json(content: dict[str, Any]) -> None:
    """Print one object on stdout; numbers that JSON does not have (nan) become null."""
    from headcount.files import to_json

    print(to_json(content))


def make_table(title: str, *columns: str, left: int = 1) -> Table:
    """A table whose first columns are words, and the others numbers."""
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < left else "right", no_wrap=True)
    return table


def number(value: float, metric: Any) -> str:
    """A score as people write it: 0.8796 accuracy, 51.02 BLEU."""
    return f"{value:.4f}" if metric.points < 1 or metric.relative else f"{value:.2f}"


def signed(value: float, metric: Any) -> str:
    """A change of the score, with its sign."""
    return f"{'+' if value >= 0 else ''}{number(value, metric)}"


@contextmanager
def progress(what: str) -> Iterator[Callable[..., None]]:
    """A bar with the time left, on stderr, for anything longer than two seconds; call it with the share done.

    A second argument replaces the description.
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


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries' own progress bars and warnings out of the output; show what headcount itself logs."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    shown = _Messages()
    logging.getLogger("headcount").addHandler(shown)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.getLogger("headcount").removeHandler(shown)


class _Messages(logging.Handler):
    """Prints what the library logs while it works, such as that it ran out of memory and tries smaller batches."""

    def emit(self, record: logging.LogRecord) -> None:
        messages.print(record.getMessage(), style="yellow", markup=False)
