"""The program as a whole: help, version and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import headcount as library


def program(*arguments, **settings):
    """The installed program, as a user starts it."""
    code = "import sys; sys.argv[0] = 'headcount'; from headcount.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        **settings,
    )


def test_help_lists_the_commands(headcount):
    answer = headcount("--help")
    assert answer.code == 0
    for command in ("inspect", "remove", "demo"):
        assert command in answer.out
    assert "let the rest go" in answer.out


@pytest.mark.parametrize(
    ("command", "example"),
    [
        ("inspect", "headcount inspect ./my-model"),
        ("remove", "headcount remove ./my-model --heads encoder.3.5,encoder.4.0 --out ./smaller"),
        ("demo", "headcount demo"),
    ],
)
def test_every_help_has_an_example(headcount, command, example):
    answer = headcount(command, "--help")
    assert answer.code == 0
    assert "Example" in answer.out
    assert example in " ".join(answer.out.split())


def test_version(headcount):
    answer = headcount("--version")
    assert (answer.code, answer.out) == (0, f"headcount {library.__version__}\n")


@pytest.mark.parametrize("arguments", [["inspekt", "x"], ["inspect"], ["inspect", "x", "--no-such-option"], ["remove"]])
def test_wrong_usage_is_2(headcount, arguments):
    answer = headcount(*arguments)
    assert answer.code == 2
    assert "Traceback" not in answer.out + answer.err


def test_a_process_of_its_own(tmp_path):
    """One sentence on stderr, nothing on stdout, no traceback, exit code 1."""
    (tmp_path / "config.json").write_text("nonsense")
    answer = program("inspect", tmp_path)
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert (
        answer.stderr
        == f"headcount: {tmp_path}/config.json is not valid JSON: Expecting value: line 1 column 1 (char 0)\n"
    )


def test_stopped_by_the_user(headcount, monkeypatch, tmp_path):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("headcount.cli.inspect.describe", stop)
    answer = headcount("inspect", tmp_path)
    assert answer.code == 1
    assert answer.err.startswith("headcount: stopped")
    assert len(answer.err.splitlines()) == 1
