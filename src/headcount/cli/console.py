"""What commands print with: one console, JSON, progress, tables that fit the terminal, and libraries kept quiet."""

from __future__ import annotations

import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headcount.errors import duration

SHOWN_AFTER, EVERY = 2.0, 10.0  # seconds after which progress is shown, and between two plain lines of it
console = Console(highlight=False, soft_wrap=False)
messages = Console(stderr=True, highlight=False)


def print_json(content: dict[str, Any]) -> None:
    """Print one object on stdout; numbers that JSON does not have (nan) become null."""
    from headcount.files import to_json

    if not console.quiet:
        print(to_json(content))


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    drop: Sequence[str] = (),
    bold: Collection[int] = (),
    **look: Any,
) -> None:
    """Print a table that fits the terminal, with every number whole.

    Where it is too wide, columns are left out in the order of `drop`, and said; what is still too wide is stacked:
    several tables, one below the other, each with the first column.

    left: how many columns are words, and not numbers. bold: rows to stand out. look: how rich draws it.
    """
    rows, shown, gone = list(rows), list(range(len(columns))), list[str]()

    def table(places: Sequence[int]) -> Table:
        made = Table(title=Text(title), title_justify="left", **look)
        for place in places:
            made.add_column(Text(columns[place]), justify="left" if place < left else "right", no_wrap=True)
        for number, row in enumerate(rows):
            made.add_row(*(Text(row[place]) for place in places), style="bold" if number in bold else None)
        return made

    def fits(places: Sequence[int]) -> bool:
        wide = console.options.update(max_width=100_000)
        return Measurement.get(console, wide, table(places)).maximum <= console.width

    for name in drop:
        if fits(shown):
            break
        shown.remove(columns.index(name))
        gone.append(name)
    first, *rest = shown
    while rest:
        most = next((size for size in range(len(rest), 1, -1) if fits([first, *rest[:size]])), 1)
        console.print(table([first, *rest[:most]]))
        rest = rest[most:]
    if gone:
        what = f"{'column' if len(gone) == 1 else 'columns'} {', '.join(gone)} left out: --json has everything"
        messages.print(f"{console.width} characters wide: {what}.", style="dim", markup=False)


def number(value: float, metric: Any) -> str:
    """A score as people write it: 0.8796 accuracy, 51.02 BLEU."""
    return metric.written(value)


def signed(value: float, metric: Any) -> str:
    """A change of the score, with its sign."""
    return metric.written(value, sign=True)


@contextmanager
def progress(what: str) -> Iterator[Callable[..., None]]:
    """Say what is being done, the share done and the time left, on stderr; call it with the share done.

    On a terminal it is a bar, for anything longer than two seconds; elsewhere plain lines, at most one every ten
    seconds. A second argument names the step; the time left is that of the step.
    """
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[left]}"))
    bar = Progress(*columns, console=messages, transient=True)
    shown, begun = bar.add_task(what, total=1.0, left=""), time.monotonic()
    pace, step, last = Pace(), what, -math.inf

    def update(share: float, now: str | None = None) -> None:
        nonlocal pace, step, last
        if now is not None and now != step:
            pace, step = Pace(), now
        left, moment = pace.left(share), time.monotonic()
        if messages.quiet or moment - begun < SHOWN_AFTER:
            return
        if messages.is_terminal:
            if not bar.live.is_started:
                bar.start()
            bar.update(shown, completed=share, description=step, left=left)
        elif moment - last >= EVERY:
            last = moment
            messages.print(f"{step}: {', '.join(filter(None, (f'{share:.0%}', left)))}", markup=False, soft_wrap=True)

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()


class Pace:
    """The time left, from the time that the share done since the first call took; a resumed run starts with a share.

    >>> pace = Pace(clock=iter([0.0, 30.0]).__next__)
    >>> pace.left(0.5), pace.left(0.75)
    ('', 'about 30 seconds left')
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.start: tuple[float, float] | None = None  # share, moment

    def left(self, share: float) -> str:
        """In words; empty as long as nothing can be said."""
        moment = self.clock()
        if self.start is None:
            self.start = share, moment
        done, took = share - self.start[0], moment - self.start[1]
        return f"about {duration(took * (1 - share) / done)} left" if done > 0 and took > 0 and share < 1 else ""


@contextmanager
def quiet(silent: bool = False) -> Iterator[None]:
    """Keep the libraries' own progress bars and warnings out of the output; show what headcount itself logs.

    silent: show nothing but results and errors.
    """
    if "transformers" in sys.modules:  # otherwise the environment tells it, when it is imported
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
    log, shown = logging.getLogger("headcount"), _Messages()
    before, messages.quiet = (log.level, messages.quiet), silent
    log.addHandler(shown)
    log.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.removeHandler(shown)
        log.setLevel(before[0])
        messages.quiet = before[1]


class _Messages(logging.Handler):
    """Prints what the library logs while it works: that it resumes, or ran out of memory and tries smaller batches."""

    def emit(self, record: logging.LogRecord) -> None:
        style = "yellow" if record.levelno >= logging.WARNING else "dim"
        messages.print(record.getMessage(), style=style, markup=False, soft_wrap=True)
