"""The `headcount` program: its commands, how a function becomes one, and what happens when one fails."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Collection
from copy import copy
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from headcount.cli.options import MACHINES, SOURCES, TASK, TEXTS, Quiet, Setup, one_of, typed, written
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
ALL = "headcount.help_all"  # in the context of a command whose whole help was asked for
UsageError: Any = typer.BadParameter.__base__  # typer exports this one only


class PlainHelp:
    """A help that shows flags without a type."""

    def get_params(self, ctx: Any) -> list[Any]:
        found = super().get_params(ctx)  # type: ignore[misc]
        for one in found:
            if getattr(one, "is_flag", False):
                one.metavar = ""
        return found


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
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # each of its attempts to connect, with an address
    if not sys.stdout.isatty():  # a file or a pipe has no width that a table could exceed
        os.environ.setdefault("COLUMNS", "140")
    try:
        return call(words)
    except HeadcountError as error:
        typer.echo(f"headcount: {error.in_words(written)}", err=True)
        return 1
    except UsageError as error:
        alone = isinstance(error, typer.BadParameter) and error.param is None  # a sentence of our own
        sentence = (error.message if alone else _wrong_number(error) or error.format_message()).rstrip(".")
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


def add_command(app: typer.Typer, function: Callable[..., None]) -> None:
    """Add a marked function: its own options and, if its first parameter is a `Setup`, the shared ones."""
    own = list(inspect.signature(function, eval_str=True).parameters.values())
    if own and own[0].annotation is Setup:
        run, parameters = _with_setup(function, own[1:], function.hidden_options)  # type: ignore[attr-defined]
    else:
        run, parameters = _alone(function, own)
    parameters = [_plain(one.replace(kind=inspect.Parameter.KEYWORD_ONLY)) for one in parameters]

    def call(**given: Any) -> None:
        run(**given)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    call.__doc__ = function.__doc__
    needs_words = any(one.default is one.empty and one.annotation is not typer.Context for one in parameters)
    app.command(function.__name__, cls=PlainCommand, no_args_is_help=needs_words)(call)


def _wrong_number(error: Any) -> str:
    """What is wrong with a value that is not the number that an option takes: typer says neither value nor range."""
    details: list[Any] = getattr(error.__cause__, "errors", list)()  # pydantic's
    kinds = {"int_parsing": "a whole number", "int_from_float": "a whole number", "float_parsing": "a number"}
    ranges = {"greater_than_equal": "at least {ge:g}", "less_than_equal": "at most {le:g}"}
    for detail in details[:1]:
        name, value, kind = error.param.opts[0], detail["input"], detail["type"]
        if kind in kinds:
            return f"{name} {value} is not {kinds[kind]}"
        if kind in ranges:
            return f"{name} is {value}; give {ranges[kind].format(**detail['ctx'])}"
    return ""


def _show_all(context: typer.Context, asked: bool) -> None:
    if asked:
        context.meta[ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all", metavar="", is_eager=True, expose_value=False, callback=_show_all, help="Show all options."
    ),
]


class PlainCommand(PlainHelp, TyperCommand):
    """A command whose `--help` names the options that few need, and explains them in `--help-all` only."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        many = any(one.name == "task" for one in self.params)  # tasks; `roles` reads texts only
        few: list[Any] = []
        for one in self.params:
            panel = getattr(one, "rich_help_panel", None)
            if panel == MACHINES or (panel in (TEXTS, SOURCES) and many):
                few.append(one)
            elif panel == TEXTS:
                one.rich_help_panel = TASK  # type: ignore[attr-defined]
        for one in few:
            one.hidden = not ctx.meta.get(ALL)
        names = ", ".join(one.opts[0] for one in few)
        self.epilog = None if not few or ctx.meta.get(ALL) else f"--help-all also explains {names}."
        super().format_help(ctx, formatter)


def _alone(
    function: Callable[..., None], own: list[inspect.Parameter]
) -> tuple[Callable[..., None], list[inspect.Parameter]]:
    """A function that takes no `Setup`, with `--quiet` beside its own options."""
    silent = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet)

    def run(**given: Any) -> None:
        from headcount.cli import console

        with console.quiet(given.pop("quiet")):
            function(**given)

    return run, [*own, silent]


def _with_setup(
    function: Callable[..., None], own: list[inspect.Parameter], without: Collection[str]
) -> tuple[Callable[..., None], list[inspect.Parameter]]:
    """The function with the shared options beside its own, made into a `Setup`, and all of these parameters."""
    shared = list(inspect.signature(Setup, eval_str=True).parameters.values())
    taken = {parameter.name for parameter in own} | set(without)
    first = [] if "model" in taken else shared[:1]  # `track` takes several
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    help_all = inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll)
    parameters = [context, *first, *own, *(one for one in shared[1:] if one.name not in taken), help_all]

    def run(**given: Any) -> None:
        from headcount.cli import console
        from headcount.cli.command_run import mention_report, print_estimate, refuse_unusable

        mine = {one.name: given[one.name] for one in own}
        setup = Setup(**{one.name: given[one.name] for one in shared if one.name in given and one.name not in without})
        setup.out = None if "out" in mine else setup.out  # a command's own --out is not a run directory
        setup.own = {**mine, "command_line": typed(given["context"])}
        with console.quiet(setup.quiet):
            refuse_unusable({**vars(setup), **mine}, setup.out)
            setup.check()
            with setup.machines():
                if setup.dry_run and "dry_run" not in mine:
                    setup.out = None
                    print_estimate(setup, given["context"].info_name, lambda: function(setup, **mine))
                else:
                    function(setup, **mine)
            mention_report(setup)

    return run, parameters


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter as in typer, except that flags show no type, and an unknown word of a `Literal` a suggestion."""
    kind, *info = get_args(parameter.annotation) if get_origin(parameter.annotation) is Annotated else (None,)
    if kind in (bool, bool | None):
        flag = copy(info[0])
        flag.metavar = ""
        return parameter.replace(annotation=Annotated[kind, flag])
    kinds = get_args(kind) if type(None) in get_args(kind) else (kind,)  # `Literal[…] | None`
    choices = get_args(kinds[0]) if get_origin(kinds[0]) is Literal else ()
    if not choices:
        return parameter
    declared = copy(info[0])
    names = [word for word in (declared.default, *(declared.param_decls or ())) if str(word).startswith("--")]
    name = names[0] if names else parameter.name.replace("_", " ")
    declared.parser, declared.metavar = one_of(name, choices), "|".join(choices)
    plain: Any = Annotated[(str | None) if kind is not kinds[0] else str, declared]
    return parameter.replace(annotation=plain)
