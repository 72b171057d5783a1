"""The `headcount` program: its commands, each imported when it is asked for, and what happens when one fails."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from headcount.cli.options import PlainHelp, add_command, written
from headcount.errors import HeadcountError, first_line, unknown

# In the order of `headcount --help`: each is a function of its name, in the module beside this one.
COMMANDS = {
    "inspect": "inspect",
    "evaluate": "evaluate",
    "ablate": "ablate",
    "compare": "evaluate",
    "importance": "importance",
    "curve": "curve",
    "prune": "prune",
    "remove": "prune",
    "gates": "gates",
    "roles": "roles",
    "track": "curve",
    "bench": "bench",
    "export": "export",
    "push": "export",
    "report": "report",
    "view": "explore",
    "explore": "explore",
    "demo": "demo",
}
SETTINGS: dict[str, Any] = {
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
TRACEBACK = "HEADCOUNT_TRACEBACK"  # set in the environment, it shows where an error that nobody foresaw came from
UsageError: Any = typer.BadParameter.__base__  # typer exports this one only


class Commands(PlainHelp, TyperGroup):
    """A group that knows its commands by name, and imports one when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            raise typer.BadParameter(unknown("command", cmd_name, COMMANDS), ctx)
        alone = typer.Typer(add_completion=False, **SETTINGS)
        module = importlib.import_module(f"headcount.cli.{COMMANDS[cmd_name]}")
        add_command(alone, getattr(module, cmd_name))
        return typer.main.get_command(alone)


app = typer.Typer(
    cls=Commands,
    name="headcount",
    help="Find out which attention heads a Transformer needs, and let the rest go.",
    no_args_is_help=True,
    **SETTINGS,
)


@app.callback(invoke_without_command=True)
def version(show: bool = typer.Option(False, "--version", metavar="", help="Print the version and exit.")) -> None:
    if show:
        from headcount import __version__

        typer.echo(f"headcount {__version__}")
        raise typer.Exit


def run(words: list[str]) -> int:
    """Run a command and give its exit code; one sentence on stderr says why it is not 0."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # transformers' own bars, too
    if not sys.stdout.isatty():  # a file or a pipe has no width that a table could exceed
        os.environ.setdefault("COLUMNS", "140")
    try:
        return call(words)
    except HeadcountError as error:
        typer.echo(f"headcount: {error.in_words(written)}", err=True)
        return 1
    except UsageError as error:
        alone = isinstance(error, typer.BadParameter) and error.param is None  # a sentence of our own
        sentence = (error.message if alone else error.format_message()).rstrip(".")
        if sentence:  # without one, the whole help has been printed instead
            command = error.ctx.command_path if error.ctx else f"headcount {words[0]}"
            typer.echo(f"headcount: {sentence[0].lower()}{sentence[1:]}; see {command} --help", err=True)
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get(TRACEBACK):
            raise
        what = f"{type(error).__name__}: {first_line(error)}"
        where = f"{TRACEBACK}=1 shows where, for a bug report"
        typer.echo(f"headcount: {what}; this is not meant to happen: {where}", err=True)
        return 1


def call(words: list[str]) -> int:
    """Run a command in this process; what it refuses, and Ctrl-C, come out as exceptions."""
    code = app(words, prog_name="headcount", standalone_mode=False)
    if code == 130:  # what typer makes of Ctrl-C
        raise KeyboardInterrupt
    return code or 0
