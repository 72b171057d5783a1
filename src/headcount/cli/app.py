"""The `headcount` program: its commands, and what happens when one fails."""

from __future__ import annotations

import os
import re
import sys

import typer

from headcount.cli import (
    ablate,
    bench,
    compare,
    curve,
    demo,
    evaluate,
    export,
    gates,
    importance,
    inspect,
    prune,
    remove,
    report,
    roles,
    track,
)
from headcount.errors import HeadcountError

app = typer.Typer(
    name="headcount",
    help="Find out which attention heads a Transformer needs, and let the rest go.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    inspect,
    evaluate,
    ablate,
    compare,
    importance,
    curve,
    prune,
    remove,
    gates,
    roles,
    track,
    bench,
    export,
    report,
    demo,
):
    command.register(app)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if show:
        from headcount import __version__

        typer.echo(f"headcount {__version__}")
        raise typer.Exit


def main() -> None:
    """Run a command; exit 0 when it is done, 1 with one sentence when it cannot be, 2 on wrong usage."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if not sys.stdout.isatty():  # a file or a pipe: no terminal that a table could be too wide for
        os.environ.setdefault("COLUMNS", "140")
    try:
        app()
    except HeadcountError as error:
        _fail(as_options(str(error)))
    except KeyboardInterrupt:
        _fail("stopped; a command with --out keeps what is finished and goes on from there")
    except SystemExit as stop:
        if stop.code == 130:  # typer's answer to a keyboard interrupt
            _fail("stopped; a command with --out keeps what is finished and goes on from there")
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def as_options(sentence: str) -> str:
    """A library's sentence names arguments of Python; say the options instead.

    >>> as_options("pass the aligned target file as target_data=…")
    'pass the aligned target file as --target-data …'
    """
    return re.sub(r"\b([a-z]+(?:_[a-z]+)*)=…", lambda found: f"--{found[1].replace('_', '-')} …", sentence)


def _fail(sentence: str) -> None:
    typer.echo(f"headcount: {sentence}", err=True)
    sys.exit(1)
