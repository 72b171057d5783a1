"""What commands print with: tables that fit, progress that tells, and silence where it is asked for."""

import itertools
import json
import logging
import re

import pytest

from headcount import save
from headcount.cli import console as printing
from headcount.cli.console import console, messages, print_table, progress, quiet
from headcount.tasks.text import word_tokenizer
from tiny_models import bert

COLUMNS = ["head", "accuracy", "change", "95% interval", "p", "p (BH)"]
ROWS = [[f"encoder.{layer}.11 *", "0.8796", "-0.0712", "-0.0931 -0.0493", "1.23e-11", "1.77e-09"] for layer in range(3)]
DROP = ["p (BH)", "accuracy", "p"]


@pytest.mark.parametrize(
    ("width", "tables", "gone"),
    [(120, 1, []), (80, 1, []), (74, 1, DROP[:1]), (60, 1, DROP[:2]), (52, 1, DROP), (40, 2, DROP), (10, 2, DROP)],
)
def test_a_narrow_terminal_loses_columns_in_order_and_no_number(capsys, monkeypatch, width, tables, gone):
    monkeypatch.setattr(console, "_width", width)
    print_table("a title", COLUMNS, ROWS, drop=DROP, bold=[1])
    printed = capsys.readouterr()
    assert printed.out.count("a title") == tables
    heads = [cell.strip() for line in printed.out.splitlines() if line.startswith("┃") for cell in line.split("┃")]
    assert width == 10 or [name for name in DROP if name not in heads] == gone
    for cell in ("encoder.2.11 *", "-0.0712", "-0.0931 -0.0493"):
        assert (cell in printed.out) == (width > 10)
    assert "…" not in printed.out or width == 10
    said = "".join(printed.err.split())
    assert all("".join(name.split()) in said for name in gone)
    assert bool(said) == bool(gone)


def test_cells_are_not_markup(capsys):
    print_table("a [red] title", ["token", "n"], [["[SEP]", "1"], ["[/]", "2"]])
    out = capsys.readouterr().out
    assert all(text in out for text in ("[SEP]", "[/]", "a [red] title"))


@pytest.fixture
def clock(monkeypatch):
    """Every look at the clock is a second later."""
    seconds = itertools.count()
    monkeypatch.setattr(printing.time, "monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(printing.Pace.__init__, "__defaults__", (printing.time.monotonic,))


def test_without_a_terminal_progress_is_lines_ten_seconds_apart(capsys, clock):
    with progress("ablating") as bar:
        for step in range(40):
            bar(step / 40)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("ablating: ")
    assert all(re.fullmatch(r"ablating: \d+%(, about \d+ (seconds?|minutes) left)?", line) for line in lines)
    assert 4 <= len(lines) <= 9  # two looks a step: 80 seconds


def test_each_step_is_named_with_its_own_time(capsys, clock):
    with progress("pruning") as bar:
        for what in ("searching", "testing"):
            for step in range(30):
                bar(step / 30, what)
    err = capsys.readouterr().err
    assert "searching: " in err
    assert "testing: " in err


def test_quiet_silences_progress_and_messages(capsys, clock):
    with quiet(silent=True), progress("ablating") as bar:
        for step in range(40):
            bar(step / 40)
        logging.getLogger("headcount").warning("out of memory")
        messages.print("text: column '0'")
    assert capsys.readouterr().err == ""
    assert not messages.quiet


def test_quiet_commands_and_resumed_runs(headcount, tmp_path):
    save(bert(pad_token_id=0), tmp_path / "model", word_tokenizer("a fine dull film"))
    texts = [f"a {word} film {'a ' * n}\t{n % 2}\n" for n, word in enumerate(["fine", "dull"] * 8)]
    (tmp_path / "dev.tsv").write_text("".join(texts))
    ask = ("ablate", tmp_path / "model", "--data", tmp_path / "dev.tsv", "--out", tmp_path / "run")
    assert headcount(*ask, "-q").err == ""
    answer = headcount(*ask, "-q", "--json")
    assert (answer.code, answer.err) == (0, "")
    assert list(json.loads(answer.out))[-1] == "signature"
    run = json.loads((tmp_path / "run/run.json").read_text())
    assert list(run)[-1] == "signature"
    (tmp_path / "run/run.json").write_text(json.dumps({**run, "finished": False}))
    again = headcount(*ask)
    assert "resuming the run in" in again.err
    other = headcount(*ask, "--limit", "8")
    assert other.code == 1
    assert "made without --limit, now --limit 8; choose another --out" in other.err
    more = headcount(*ask[:4], "--limit", "8", *ask[4:-1], tmp_path / "two")
    assert more.code == 0
    less = headcount(*ask[:4], "--limit", "6", *ask[4:-1], tmp_path / "two")
    assert "made with --limit 8, now --limit 6" in less.err
