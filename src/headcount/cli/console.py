"""What commands share when they speak: one console, JSON on stdout, and quiet libraries."""

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
    """One object on stdout; numbers that JSON does not have (nan) become null."""
    from headcount.files import to_json

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


def each_table(result: dict[str, Any], metric: Any, alpha: float) -> Callable[[], None]:
    """Every head's effect, the most harmful first."""

    def show() -> None:
        sign = 1 if metric.higher_is_better else -1
        rows = sorted(result["heads"], key=lambda row: (sign * row["change"], row["p"]))
        table = _table(result, "head", metric.name, "change", "95% interval", "p", "p (Holm)", "p (BH)")
        for row in rows:
            marked = row["p_holm"] < alpha
            table.add_row(
                *(
                    f"{row['head']} *" if marked else row["head"],
                    number(row["score"], metric),
                    _signed(row["change"], metric),
                    _interval(row, metric),
                ),
                *(f"{row[name]:.3g}" for name in ("p", "p_holm", "p_bh")),
                style="bold" if marked else None,
            )
        console.print(table)
        worse = [row for row in rows if row["p_holm"] < alpha and sign * row["change"] < 0]
        better = [row for row in rows if row["p_holm"] < alpha and sign * row["change"] > 0]
        console.print(
            f"{len(worse)} of {len(rows)} heads hurt when they are off, {len(better)} help ({result['test']}, "
            f"Holm-corrected p < {alpha:g}); uncorrected, {sum(row['p'] < alpha for row in rows)} would seem to matter."
        )

    return show


def layers_table(result: dict[str, Any], metric: Any, alpha: float) -> Callable[[], None]:
    """Each layer reduced to its best head."""

    def show() -> None:
        table = _table(result, "layer", "head kept", metric.name, "change", "95% interval", "p")
        for row in result["layers"]:
            table.add_row(
                *(
                    f"{row['kind']}.{row['layer']}{' *' if row['p'] < alpha else ''}",
                    row["best"],
                    number(row["score"], metric),
                ),
                *(_signed(row["change"], metric), _interval(row, metric), f"{row['p']:.3g}"),
                style="bold" if row["p"] < alpha else None,
            )
        console.print(table)
        if result["chosen_apart"]:
            console.print("Heads were chosen on other data than they are tested on.")
        else:
            console.print(
                "The best of many is tested on the data it was chosen on, so p is optimistic; "
                "--select-data chooses on other data."
            )

    return show


def compare_table(result: dict[str, Any], metric: Any) -> Callable[[], None]:
    """The heads whose effect is largest, on both data sets, and how the effects go together."""

    def show() -> None:
        rows = sorted(result["heads"], key=lambda row: -abs(row["change"]))
        table = _table(result, "head", "change", "change on the other data")
        for row in rows:
            table.add_row(row["head"], _signed(row["change"], metric), _signed(row["change_against"], metric))
        console.print(table)
        if result["remark"]:
            console.print(result["remark"])
            return
        console.print(
            f"Pearson r {result['pearson']:.2f} (p {result['p']:.2g}), "
            f"Spearman r {result['spearman']:.2f} (p {result['spearman_p']:.2g}) over {len(rows)} heads."
        )

    return show


def _table(result: dict[str, Any], *columns: str) -> Table:
    base = f", {result['metric']} {result['base']:.4g}" if "base" in result else ""
    table = Table(title=f"{result['model']}{base}, {result['n']} examples", title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left", no_wrap=True)
    return table


def _signed(value: float, metric: Any) -> str:
    return f"{value:+.4f}" if metric.points < 1 or metric.relative else f"{value:+.2f}"


def _interval(row: dict[str, Any], metric: Any) -> str:
    return f"{_signed(row['low'], metric)} {_signed(row['high'], metric)}"
