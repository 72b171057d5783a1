"""Ctrl-C: exit code 130 and one sentence, whenever it comes; the same command resumes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

import tiny_models
from headcount import save
from headcount.runs import read_run
from headcount.tasks.text import word_tokenizer

WORDS = "a fine dull film was seen by all of us"
# Sends SIGINT to itself when the module named first is about to be imported: the same moment on every machine.
PROGRAM = """
import os, signal, sys

class Trap:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            os.kill(os.getpid(), number)

number, moment = getattr(signal, sys.argv.pop(1)), sys.argv.pop(1)
sys.argv[0] = "headcount"
sys.meta_path.insert(0, Trap())
from headcount.cli import main
main()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("interrupted")
    save(tiny_models.bert(pad_token_id=0), root / "model", tokenizer=word_tokenizer(WORDS))
    lines = [
        f"{word} {other} film\t{place % 2}\n"
        for place in range(40)
        for word in WORDS.split()
        for other in WORDS.split()
    ]
    (root / "dev.tsv").write_text("".join(lines))
    return root


def start(moment, *words, number="SIGINT"):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, number, moment, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )


@pytest.mark.parametrize(
    "moment",
    [
        *("headcount.cli.app", "typer", "headcount.cli.options", "headcount.errors", "headcount.cli.evaluate", "rich"),
        *(
            "headcount.cli.console",
            "transformers",
            "numpy",
            "torch",
            "headcount.ablation",
            "headcount.cli.model_loading",
        ),
        "headcount.tasks",
    ],
)
def test_while_modules_are_imported(place, moment):
    process = start(moment, "evaluate", place / "model", "--data", place / "dev.tsv")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "", "headcount: stopped\n")


@pytest.mark.parametrize("moment", ["headcount.cli.demo", "headcount.demo", "headcount.files"])
def test_a_demo_always_resumes(tmp_path, moment):
    process = start(moment, "demo", "translation", "--quick", "--out", tmp_path / "demo")
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "headcount: stopped; the same command resumes where it stopped\n")


def test_while_it_works_and_then_it_resumes(place, tmp_path):
    for attempt in range(5):  # on a busy machine it can be done before the signal comes
        run = tmp_path / f"run-{attempt}"
        words = ("ablate", place / "model", "--data", place / "dev.tsv", "--out", run, "--json")
        process = start("", *words)
        while not (run / "lock").exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        if process.returncode != 0:
            break
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "headcount: stopped; the same command resumes where it stopped"
    assert "Traceback" not in err
    assert not (read_run(run) or {}).get("finished")
    process = start("", *words)
    process.communicate(timeout=300)
    assert process.returncode == 0
    assert read_run(run)["finished"]


def test_sigterm_is_answered_too(place, tmp_path):
    words = ("ablate", place / "model", "--data", place / "dev.tsv", "--out", tmp_path / "run")
    process = start("headcount.ablation", *words, number="SIGTERM")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (128 + signal.SIGTERM, "")
    assert err == "headcount: stopped; the same command resumes where it stopped\n"


def test_a_second_one_adds_nothing(place):
    """Pressed twice, as people do: the second comes while Python shuts down."""
    process = start("headcount.cli.model_loading", "evaluate", place / "model", "--data", place / "dev.tsv")
    assert process.stderr.readline() == "headcount: stopped\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "")


def test_inside_this_process(headcount, monkeypatch, tmp_path):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("headcount.cli.command_run.refuse_missing_model", stop)
    answer = headcount("inspect", tmp_path)
    assert (answer.code, answer.out, answer.err) == (130, "", "headcount: stopped\n")
