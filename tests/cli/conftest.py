"""The `headcount` program, run in this process: exit code, what it printed, what it complained about."""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest

import zoo
from headcount import remove, save
from headcount.cli.app import main


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
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(bool(stop.code))
        printed = capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    return call


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
