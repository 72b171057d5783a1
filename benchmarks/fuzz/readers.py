"""Everything in headcount that reads a file from outside, as functions of a directory."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.fuzz import seeds
from benchmarks.fuzz.worker import Reader
from headcount import Scores, anatomy, load, report
from headcount.cli import main
from headcount.cli.command_run import refuse_finished
from headcount.cli.gates import read_roles
from headcount.cli.inspect import describe
from headcount.cli.model_loading import load_tokenizer
from headcount.demo import claim
from headcount.dynamics import Dynamics, read_tracked
from headcount.evaluation import evaluate
from headcount.gates import Gating
from headcount.gates.hard_concrete import GatedUnits
from headcount.gates.pipeline import GatePath, Goal
from headcount.pruning.search import SearchCheckpoint
from headcount.roles import Sentences
from headcount.runs import RunDirectory, read_run
from headcount.surgery.loading import read_checkpoint, read_generation_config
from headcount.tasks import Classification, LanguageModeling, Translation
from headcount.tasks.text import word_tokenizer
from headcount.training import Checkpointer

SIGNATURE = {"model": {"name": "m"}, "tasks": [{"n": 6}]}


def _data(given: Path) -> str:
    return str(next(iter(sorted(given.glob("data.*"))), given))


def _exit(*words: str) -> None:
    """A command that ends with 0 or 1, and complains in one line."""
    errors = io.StringIO()
    sys.argv = ["headcount", *words]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            main()
    except SystemExit as stop:
        said = errors.getvalue()
        if stop.code not in (0, None) and (stop.code != 1 or said.count("\n") != 1):
            raise AssertionError(f"exit code {stop.code}: {said[-300:]}") from None


def _named(name: str, function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    function.__name__ = name
    return function


def data_readers() -> list[Reader]:
    tokenizer, marian, gpt = seeds.tokenizer(), word_tokenizer(seeds.WORDS, "marian"), word_tokenizer("a", "gpt")
    reads = (
        _named("classification", lambda given: Classification(_data(given), tokenizer, max_length=16).signature()),
        _named("translation", lambda given: Translation(_data(given), marian, max_length=16).signature()),
        _named("causal", lambda given: LanguageModeling(_data(given), gpt, block=16).signature()),
        _named("masked", lambda given: LanguageModeling(_data(given), tokenizer, block=16).keys()),
    )
    tables = seeds.tables()
    sentences = (_named("sentences", lambda given: Sentences.of(_data(given), parser=False).signature()),)
    found = [Reader(kind, reads, tables[kind], 7) for kind in ("csv", "tsv", "jsonl", "txt")]
    return [
        *found,
        Reader("parquet", reads[:1], tables["parquet"], 8),
        Reader("conllu", sentences, tables["conllu"], 12),
        Reader("data folder", reads[:1], seeds.folders(), 0.4, r"(.*/)?([a-z_]+\.json|README\.md|.*\.jsonl)"),
    ]


def model_readers() -> list[Reader]:
    models = seeds.models()
    generation = [{name: content for name, content in one.items() if name.endswith("config.json")} for one in models]
    tokens = [{name: content for name, content in models[0].items() if "token" in name or name == "config.json"}]
    return [
        Reader("checkpoint", (_named("read_checkpoint", read_checkpoint),), models, 17),
        Reader("header", (_named("read_checkpoint", read_checkpoint),), models, 15, r".*\.safetensors"),
        Reader("config", (_named("inspect", lambda given: describe(str(given), 8)),), models, 2, r"config\.json"),
        Reader("generation", (_named("generation", read_generation_config),), generation, 3),
        Reader("tokenizer", (_named("tokenizer", lambda given: load_tokenizer(given, "it")),), tokens, 1),
        Reader("load", (_named("load", load),), models, 1),
        Reader("commands", (_named("inspect", lambda given: _exit("inspect", str(given), "--json")),), models, 0.2),
    ]


def run_readers() -> list[Reader]:
    runs = seeds.runs()
    reads = (
        _named("read_run", read_run),
        _named("read_roles", lambda given: read_roles(str(given))),
        _named("refuse_finished", refuse_finished),
        _named("open", lambda given: RunDirectory(given, SIGNATURE).open().__enter__()),
    )
    demo = [{"demo.json": b'{"demo": "reviews", "quick": false}'}]
    asked = {"demo": "reviews", "quick": False}
    return [
        Reader("run", reads, runs, 6),
        Reader("report", (_named("report", lambda given: report(given, given / "report.html")),), runs, 3),
        Reader("scores", (_named("scores", _scores),), seeds.scores(), 6, r".*\.json"),
        Reader("shard", (_named("choices", _choices),), seeds.shards(SIGNATURE), 3, r".*\.shard"),
        Reader("demo", (_named("claim", lambda given: claim(given, asked)),), demo, 3),
    ]


def _scores(given: Path) -> None:
    found = Scores.load(given / "scores.json")
    found.order(), found.intervals(), found.to_json()


def _choices(given: Path) -> None:
    run = RunDirectory(given, SIGNATURE)
    heads = anatomy(_classifier()).heads
    SearchCheckpoint(run).choice(2, heads, (), lambda: list(heads[:2]))
    SearchCheckpoint(run).statistics([], 6, lambda: np.ones((6, 3))).sum(0)


@functools.cache
def _classifier() -> Any:
    return seeds.classifier()


def training_readers() -> list[Reader]:
    """The checkpoints of interrupted trainings, and what else resumes."""
    model, task = _classifier(), seeds.task()
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-9)
    heads = anatomy(model).heads
    task.losses(task.outputs(model, task.batch([0])), task.batch([0])).mean().backward()
    optimizer.step()  # so that it remembers something

    def trained(given: Path) -> None:
        checkpoint = Checkpointer(given, signature=SIGNATURE)
        if checkpoint.read(lambda state: [float(score) for score in state["scores"]]):
            checkpoint.restore(model, optimizer)

    def train(folder: Path) -> None:
        best = {name: tensor + 1 for name, tensor in model.state_dict().items()}
        Checkpointer(folder, signature=SIGNATURE).keep({"scores": [0.5]}, model, optimizer, copies={"best": best})

    def gated(given: Path) -> GatePath:
        return GatePath(model, task, GatedUnits.find(model), Gating(epochs=3, lr=1e-9), [Goal(0.1)], given)

    def gate(folder: Path) -> None:
        path = gated(folder)
        path.training.epoch(0)
        path.keep(1)

    def swept(given: Path) -> Any:
        return evaluate(model, task, ["encoder.0.1"], run=given)

    def tracked(given: Path) -> None:
        shard = RunDirectory(given, SIGNATURE).load_shard("checkpoint")
        told = read_tracked("one", shard, {str(head) for head in heads})
        Dynamics((told, told), task.metric).to_json() if told is not None else None

    return [
        Reader("training", (_named("training", trained),), [seeds.written(train)], 3),
        Reader("gates", (_named("gates", gated),), [seeds.written(gate)], 3),
        Reader("track", (_named("track", tracked),), seeds.checkpoints(heads, SIGNATURE), 2, r".*\.shard"),
        Reader("sweep", (_named("sweep", swept),), [seeds.written(swept)], 1, r".*\.shard|run\.json"),
    ]  # fmt: skip


def readers() -> list[Reader]:
    return [*data_readers(), *model_readers(), *run_readers(), *training_readers()]
