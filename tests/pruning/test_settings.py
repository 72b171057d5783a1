"""`Pruning`: every setting is checked when it is made, and a new one needs a field and an option, nothing else."""

import inspect
import sys
import types
from dataclasses import dataclass, fields
from pathlib import Path
from typing import get_args

import pytest
import typer
from typer.testing import CliRunner

import tiny_models
from headcount import prune, save
from headcount.cli import prune as command
from headcount.cli.app import add_command
from headcount.errors import HeadcountError
from headcount.settings import SEARCHES, Method, Pruning, Recovery
from headcount.tasks.text import word_tokenizer
from toy_jobs import JOBS, WORDS, classification, sentences


@pytest.mark.parametrize(
    ("given", "fact", "argument"),
    [
        ({}, "size", "max_drop"),
        ({"max_drop": -1}, "-1", "max_drop"),
        ({"max_drop": float("nan")}, "nan", "max_drop"),
        ({"heads": 2, "speedup": 1.2}, "twice", "speedup"),
        ({"heads": 0}, "0", "heads"),
        ({"heads": 1.5}, "1.5", "heads"),
        ({"heads": "half"}, "'half'", "heads"),
        ({"params": 2.0}, "2", "params"),
        ({"params": "150%"}, "1.5", "params"),
        ({"speedup": 0.9}, "0.9", "speedup"),
        ({"max_drop": 1, "kinds": ()}, "no kind", "kinds"),
        ({"max_drop": 1, "keep_at_least": -1}, "-1", "keep_at_least"),
        ({"max_drop": 1, "confidence": 0.3}, "0.3", "confidence"),
        ({"max_drop": 1, "score_examples": 0}, "0", "score_examples"),
        ({"max_drop": 1, "step": 0}, "0 ", "step"),
        ({"max_drop": 1, "step": 1.5}, "1.5", "step"),
        ({"max_drop": 1, "recovery": 2}, "2", "recovery"),
    ],
)
def test_every_setting_is_checked_at_construction(given, fact, argument):
    with pytest.raises(HeadcountError) as caught:
        Pruning(**given)
    assert fact in caught.value.message
    assert f"--{argument}" in caught.value.in_words(lambda name: f"--{name}")


@pytest.mark.parametrize(
    ("given", "meant"),
    [({"method": "michell"}, "michel"), ({"compensation": "refitt"}, "refit"), ({"overlap": "dropp"}, "drop")],
)
def test_unknown_names_get_suggestions(given, meant):
    with pytest.raises(HeadcountError, match=f"did you mean '{meant}'"):
        Pruning(max_drop=1, **given)


def test_text_and_numbers_mean_the_same():
    assert Pruning(heads="50%") == Pruning(heads="0.5") == Pruning(heads=0.5)
    assert Pruning(heads="36") == Pruning(heads=36)
    assert Pruning(params="10%") == Pruning(params=0.1)
    assert Pruning(max_drop=1, kinds="encoder, cross") == Pruning(max_drop=1, kinds=["encoder", "cross"])
    assert Pruning(heads="36").head_count(72) == Pruning(heads="50%").head_count(72) == 36
    for given, words in (({"heads": 99}, "99 .* only 8"), ({"heads": 0.01}, "of 8 heads")):
        with pytest.raises(HeadcountError, match=words):
            Pruning(**given).head_count(8)


def test_knobs_are_the_fields_by_name():
    model, tasks = JOBS["classifier"][0](), [classification(start, 12) for start in (0, 1, 2)]
    plain = prune(model, *tasks, max_drop=100, keep_at_least=1)
    assert plain.settings == Pruning(max_drop=100, keep_at_least=1)
    assert prune(model, *tasks, settings=plain.settings).removed == plain.removed
    assert prune(model, *tasks, settings=plain.settings, keep_at_least=2).left == 4
    with pytest.raises(HeadcountError, match=r"'keep_atleast'.*'keep_at_least'"):
        prune(model, *tasks, max_drop=1, keep_atleast=1)


def test_the_signature_holds_every_setting():
    signature = Pruning(max_drop=1, recovery=Recovery(2)).signature()
    assert set(signature) == {one.name for one in fields(Pruning)}
    assert signature["recovery"]["epochs"] == 2


def test_the_command_line_has_the_same_choices_and_defaults():
    """Every field has an option of its name, but for those that other options make: recovery and the shared seed."""
    options = inspect.signature(command.prune, eval_str=True).parameters
    for one in fields(Pruning):
        if one.name not in ("recovery", "seed"):
            assert options[one.name].default == one.default
    assert set(get_args(Method)) == set(SEARCHES)


@dataclass(frozen=True)
class WithPatience(Pruning):
    """The first edit of a new knob: a field."""

    patience: int = 3


def test_a_new_knob_is_a_field(monkeypatch):
    """… that `prune` takes by name and hands to the search, the result and the signature."""
    monkeypatch.setattr("headcount.pruning.pipeline.Pruning", WithPatience)
    model, tasks = JOBS["classifier"][0](), [classification(start, 12) for start in (0, 1, 2)]
    pruned = prune(model, *tasks, heads=2, patience=5)
    assert pruned.settings.patience == pruned.signature["patience"] == 5


def test_and_an_option(monkeypatch, tmp_path):
    """… that the command hands on by its name: this adds one to the command's source, and nothing else."""
    line = '    overlap: OverlapOption = "refuse",\n'
    source = Path(command.__file__).read_text(encoding="utf-8")
    assert source.count(line) == 1
    option = '    patience: Annotated[int, typer.Option("--patience")] = 3,\n'
    edited = types.ModuleType("headcount.cli.edited")
    monkeypatch.setitem(sys.modules, edited.__name__, edited)
    exec(source.replace(line, line + option), edited.__dict__)
    seen = []
    monkeypatch.setattr("headcount.settings.Pruning", WithPatience)
    monkeypatch.setattr("headcount.pruning.forecast", lambda *given: seen.append(given[-1]) or {"text": "planned"})
    app = typer.Typer()
    add_command(app, edited.prune)
    save(tiny_models.bert(pad_token_id=0), tmp_path / "model", tokenizer=word_tokenizer(WORDS))
    for name, start in (("train", 0), ("dev", 1)):
        rows = [f"{text}\t{i % 2}\n" for i, text in enumerate(sentences(start, 12))]
        (tmp_path / f"{name}.tsv").write_text("".join(rows))
    data = ("--score-data", tmp_path / "train.tsv", "--data", tmp_path / "dev.tsv", "--heads", "2", "--dry-run")
    result = CliRunner().invoke(app, [str(word) for word in (tmp_path / "model", *data, "--patience", 5)])
    assert result.exit_code == 0, result.output
    assert seen == [WithPatience(heads=2, patience=5)]
