"""What is computed for V19: `headcount` commands, and the control that no command has, plain training without gates."""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from recipes.reproduce.experiments import Experiment, Part
from recipes.reproduce.running import directory_of
from transformers import AutoTokenizer

from headcount import anatomy, evaluate, load, load_task
from headcount.pruning import hold_out
from headcount.runs import RunDirectory, model_signature, read_run, versions
from headcount.stats import change_bounds
from headcount.training import fit

KINDS = ("encoder", "all")  # V19 prunes the encoder alone, and all kinds together


def voita_parts(options: argparse.Namespace, out: Path) -> tuple[Part, ...]:
    """Every part of V19, in the sizes that are asked for."""
    agree = [
        Part(name, f"{name} of heads", _scored(name), lambda one: one.translates, size="relevance_sentences")
        for name in ("relevance", "confidence")
    ]
    roles = [Part("roles", "roles of heads", _roles(options), _has_roles, size="role_sentences")]
    for kinds in KINDS:
        for price in options.prices:
            gated = Part(
                gates_name(kinds, price), f"gates on {kinds} heads, lambda {price}", _gates(kinds, price, options),
                has_gates(kinds), size="gate_sentences",
            )  # fmt: skip
            left = f"{gated.name}-roles"
            again = Part(
                left, f"roles after {gated.title}", _roles(options, gated, out), has_gates(kinds),
                size="role_sentences", model=_pruned(gated, options, out),
            )  # fmt: skip
            agree.append(gated)
            roles.append(again)
    return (*agree, *roles)


def gates_name(kinds: str, price: str) -> str:
    return f"gates-{kinds}-{price}"


def _has_roles(one: Experiment) -> bool:
    return one.treebank is not None


def has_gates(kinds: str) -> Callable[[Experiment], bool]:
    """A classifier has one kind of heads, which is all of them."""
    return lambda one: one.treebank is not None and (one.translates or kinds == "all")


def control_part(kinds: str, options: argparse.Namespace) -> Part:
    """What the gates on these kinds are compared with; `control` computes it, and not a command."""

    def command(one: Experiment) -> list[str]:
        return ["control", one.model, str(options.gate_epochs), one.gate_lr]

    return Part(f"control-{kinds}", f"{kinds} heads trained without gates", command)


def _scored(method: str) -> Callable[[Experiment], list[str]]:
    return lambda one: [
        "importance", one.model, "--data", one.data, *one.aligned("--target-data", "data"), "--method", method
    ]  # fmt: skip


def _gates(kinds: str, price: str, options: argparse.Namespace) -> Callable[[Experiment], list[str]]:
    epochs = ["--epochs", str(options.gate_epochs)]
    scratch = ["--from-scratch"] if options.scratch == price else []

    def command(one: Experiment) -> list[str]:
        data = ["--data", one.score, *one.aligned("--target-data", "score")]
        test = ["--test", one.data, *one.aligned("--test-target-data", "data")]
        only = ["--kinds", kinds] if kinds != "all" else []
        training = [*epochs, "--lr", one.gate_lr, "--tokens", "256"]
        return [
            "gates", one.model, *data, *test, "--lambda", price, *only, *training, "--overlap", "drop", *scratch
        ]  # fmt: skip

    return command


def _roles(
    options: argparse.Namespace, gated: Part | None = None, out: Path | None = None
) -> Callable[[Experiment], list[str]]:
    """Roles in the treebank; frequencies of tokens from the data that the model was trained on."""
    where: Callable[[Experiment], str] = lambda one: one.model  # noqa: E731
    if gated is not None and out is not None:
        where = _pruned(gated, options, out)
    return lambda one: ["roles", where(one), "--data", str(one.treebank), "--frequencies", one.score]


def _pruned(gated: Part, options: argparse.Namespace, out: Path) -> Callable[[Experiment], str]:
    """The model that a run of gates has left."""
    return lambda one: str(directory_of(out, one, gated, options.gate_sentences)[0] / "model")


def control(
    out: Path, one: Experiment, kinds: str, options: argparse.Namespace, gates: Sequence[str], compute: bool
) -> dict[str, Any] | None:
    """The whole model trained for as many epochs, on the same data and weights, without gates; None if not computed.

    gates: directories of models that gates have left, to compare with it on the same test data.
    """
    sizes = (options.gate_sentences, options.gate_epochs, one.gate_lr)
    path = out / f"{one.name.lower().replace(' ', '-')}-control-{kinds}-{'-'.join(map(str, sizes))}"
    known = read_run(path)
    if (known and known.get("finished")) or not compute:
        return known if known and known.get("finished") else None
    print(f"{one.name}, the whole model trained without gates ({kinds} heads)", flush=True)
    model, tokenizer = (
        load(one.model, dtype=torch.float32),
        AutoTokenizer.from_pretrained(one.model, trust_remote_code=False),
    )
    kind = "translation" if one.translates else "classification"
    targets = one.targets if one.translates else (None, None)
    test, train = (
        load_task(kind, data, tokenizer, model, target_data=target, limit=options.gate_sentences)
        for data, target in zip((one.data, one.score), targets, strict=False)
    )
    train, test, _ = hold_out(train, test, 0, "drop")
    signature = {"command": "control", "model": model_signature(model), "train": train.signature(), "sizes": sizes}
    with RunDirectory(path, {**signature, "kinds": kinds, "versions": versions()}).open() as directory:
        trained = copy.deepcopy(model)
        if kinds != "all":  # the rest is frozen, as it is with gates on these kinds only
            blocks = [site.block for site in anatomy(trained).sites if site.kind == kinds]
            learning = {id(parameter) for block in blocks for parameter in block.parameters()}
            for parameter in trained.parameters():
                parameter.requires_grad_(parameter.requires_grad and id(parameter) in learning)
        fit(trained, train, epochs=options.gate_epochs, lr=float(one.gate_lr), tokens=256, directory=path / "state")
        before, after = (evaluate(each.eval(), test).of() for each in (model, trained))
        facts = {**test.metric.facts(), "n": len(test), "base": float(test.metric.of(before))}
        against = {}
        for place in gates:
            gated = evaluate(load(place, dtype=torch.float32), test).of()
            against[Path(place).parent.name] = _change(after, gated, test.metric)
        found = {"score": float(test.metric.of(after)), **_change(before, after, test.metric), "against": against}
        directory.write({"command": "control", "model": one.model, **facts, **found})
    return read_run(path)


def _change(before: Any, after: Any, metric: Any) -> dict[str, float]:
    low, high = change_bounds(before, after[None], metric)
    change = float(metric.of(after) - metric.of(before))
    return {"change": change, "low": float(low[0]), "high": float(high[0])}
