"""The program as a whole: help, version, exit codes, and the words of its refusals."""

import os
import re
import subprocess
import sys
from typing import Annotated, Literal, get_args, get_type_hints

import pytest
import typer

import headcount as library
from headcount.cli.app import COMMANDS, call
from headcount.cli.demo import demo
from headcount.cli.importance import Exclude, Method
from headcount.cli.loading import DTYPES
from headcount.cli.options import UNITS, FillName, Precision, command
from headcount.demo import STORIES
from headcount.errors import HeadcountError

HEAVY = {"torch", "transformers", "datasets", "numpy", "scipy", "pandas", "sklearn"}


def program(*arguments, after="", **settings):
    """The installed program, as a user starts it."""
    lines = ("import sys", "sys.argv[0] = 'headcount'", "from headcount.cli import main", "try: main()")
    code = "\n".join([*lines, f"finally: {after or 'pass'}"])
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        **settings,
    )


def test_help_lists_the_commands_in_order_with_a_line_each(headcount):
    answer = headcount("--help")
    assert answer.code == 0
    listed = re.findall(r"^│ (\w+) {2,}(\S.*?) *│$", answer.out.split("Commands")[1], flags=re.MULTILINE)
    assert tuple(name for name, _ in listed) == COMMANDS
    assert all(about[0].isupper() for _, about in listed)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_examples_that_parse(headcount, monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    answer = headcount(name, "--help")
    assert answer.code == 0
    text = answer.out.partition("╭")[0]  # above the options
    examples = [" ".join(example.split()) for example in re.split(r"\n *\n", text.partition("Examples:")[2])]
    examples = [example for example in examples if example]
    assert examples
    for example in examples:
        assert example.startswith(f"headcount {name}")
        monkeypatch.setattr("headcount.cli.console.quiet", stop)  # what most commands enter first, after their options
        with pytest.raises((Reached, HeadcountError)):  # `report` refuses runs that are not there
            call(example.split()[1:])


class Reached(Exception):
    """The options were understood, and the work would begin."""


def stop(*args, **settings):
    raise Reached


@pytest.mark.parametrize("words", [["--help"], ["prune", "--help"], ["ablate", "x", "--data", "y", "--mode", "all"]])
def test_nothing_heavy_is_imported_before_the_command_line_is_understood(words):
    answer = program(*words, after="print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr)")
    loaded = set(answer.stderr.splitlines()[-1].split())
    assert {"headcount", "typer"} <= loaded
    assert not HEAVY & loaded


def test_only_the_command_asked_for_is_imported():
    answer = program("evaluate", "x", after="print(*sys.modules, file=sys.stderr)")
    loaded = set(answer.stderr.splitlines()[-1].split())
    assert {name for name in COMMANDS if f"headcount.cli.{name}" in loaded} == {"evaluate"}


def test_version(headcount):
    answer = headcount("--version")
    assert (answer.code, answer.out) == (0, f"headcount {library.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["inspekt", "x"], "did you mean 'inspect'"),
        (["inspect", "x", "--lenth", "3"], "--length"),
        (["inspect", "x", "--length", "three"], "--length"),
        (["inspect", "x", "--length", "0"], "--length"),
        (["evaluate", "x"], "--data"),
        (["demo", "review"], "did you mean 'reviews'"),
        (["importance", "x", "--data", "y", "--method", "gradeint"], "did you mean 'gradient'"),
        (["importance", "x", "--data", "y", "--per", "tokens"], "did you mean 'token'"),
        (["importance", "x", "--data", "y", "--exclude", "ends"], "did you mean 'end'"),
        (["compare", "x", "--data", "y", "--against", "z", "--fill", "meen"], "did you mean 'mean'"),
        (["evaluate", "x", "--data", "y", "--device", "cudas:1"], "did you mean 'cuda'"),
        (["remove", "x", "--heads", "encoder.0.0", "--out", "y", "--dtype", "flaot16"], "did you mean 'float16'"),
    ],
)
def test_wrong_usage_is_2_in_one_sentence(headcount, arguments, fact):
    answer = headcount(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert re.fullmatch(r"headcount: \S.*; see headcount( \w+)? --help\n", answer.err)
    assert fact in answer.err


@pytest.mark.parametrize("arguments", [[], ["inspect"], ["remove"]])
def test_a_command_alone_prints_its_help(headcount, arguments):
    answer = headcount(*arguments)
    assert (answer.code, answer.err) == (2, "")
    assert "Usage: headcount" in answer.out


def test_choices_are_the_librarys():
    from headcount import evaluation, scoring, structure
    from headcount.scoring import confidence

    assert set(get_args(Method)) == set(scoring.METHODS)
    assert set(get_args(Exclude)) == set(confidence.EXCLUDE)
    assert structure.UNITS == UNITS
    assert set(get_args(FillName)) == set(evaluation.FILLS)
    assert set(get_args(Precision)) == {"auto", *DTYPES}
    assert set(get_args(get_type_hints(demo)["name"])) == set(STORIES)


def test_an_error_names_options_where_python_would_name_arguments(headcount, monkeypatch):
    def refuse(given, out):
        raise HeadcountError("too long", advice="use {max_length}, or another {run}")

    monkeypatch.setattr("headcount.cli.command_run.refuse_unusable", refuse)
    answer = headcount("evaluate", "x", "--data", "y")
    assert (answer.code, answer.err) == (1, "headcount: too long; use --max-length, or another --out\n")


def test_a_process_of_its_own(tmp_path):
    """One sentence on stderr, nothing on stdout, no traceback, exit code 1."""
    (tmp_path / "config.json").write_text("nonsense")
    answer = program("inspect", tmp_path)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith(f"headcount: {tmp_path}/config.json is not valid JSON")
    assert answer.stderr.count("\n") == 1


def test_a_closed_set_that_may_be_left_out_suggests_too():
    def choose(weights: Annotated[Literal["all", "none"] | None, typer.Option("--weights")] = None) -> None:
        chosen.append(weights)

    chosen: list[str | None] = []
    app = typer.Typer()
    command(app, "choose")(choose)
    for words in ([], ["--weights", "none"]):
        app(words, standalone_mode=False)
    with pytest.raises(typer.BadParameter, match="did you mean 'all'"):
        app(["--weights", "al"], standalone_mode=False)
    assert chosen == [None, "none"]
