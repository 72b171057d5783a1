"""The `headcount` program, run in this process: exit code, what it printed, what it complained about."""

from __future__ import annotations

import signal
import sys
from typing import NamedTuple

import pytest

import zoo
from headcount import remove, save
from headcount.cli import main


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def headcount(monkeypatch, capsys):
    """`headcount("inspect", path)` runs `headcount inspect path`."""

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["headcount", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "120")
        monkeypatch.setenv("HEADCOUNT_TRACEBACK", "1")  # what nobody foresaw fails a test loudly
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        code = stop.value.code
        assert isinstance(code, int)
        printed = capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield call
    for number, handler in handlers.items():  # a stopped command ignores them while it ends
        signal.signal(number, handler)


@pytest.fixture(scope="package")
def directories(tmp_path_factory):
    """Saved models to look at and to cut."""
    root = tmp_path_factory.mktemp("models")
    bert = zoo.build("bert", "BertForSequenceClassification")
    save(bert, root / "bert")
    save(remove(bert, ["encoder.0.1", *(f"encoder.1.{index}" for index in range(4))]), root / "pruned")
    for name in ("albert-groups", "llama", "t5", "clip"):
        save(zoo.build(name), root / name)
    save(remove(zoo.build("llama"), ["decoder.0.0", "decoder.1.0", "decoder.1.1"]), root / "uneven")
    return root
