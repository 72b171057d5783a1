"""`recipes/train_translator.py` on a toy language: it learns, keeps every epoch, and resumes as if never stopped."""

import importlib
import json

import pytest
from safetensors.torch import load_file
from transformers import AutoTokenizer

from headcount import Translation, evaluate, load
from headcount.errors import RunConflict

NOUNS = {"dog": "chien", "cat": "chat", "man": "homme", "girl": "fille", "horse": "cheval"}
VERBS = {"runs": "court", "sleeps": "dort", "sings": "chante", "waits": "attend"}
SIZES = "--layers 1 --heads 2 --width 32 --ffn 64 --vocabulary 60 --tokens 80 --lr 0.01 --dropout 0.1 --val-limit 20"
EPOCHS = 14


@pytest.fixture(scope="module")
def recipe():
    return importlib.import_module("recipes.train_translator")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("aligned")
    pairs = [
        (f"a {one} {verb} near a {two}", f"un {french} {verbe} avec un {other}")
        for one, french in NOUNS.items()
        for verb, verbe in VERBS.items()
        for two, other in NOUNS.items()
    ]
    for name, some in (("val", pairs[::5]), ("train", [pair for place, pair in enumerate(pairs) if place % 5])):
        for side, language in enumerate(("en", "fr")):
            (root / f"{name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in some))
    return root


def train(recipe, data, out, epochs, *more):
    files = [str(data / name) for name in ("train.en", "train.fr", "val.en", "val.fr")]
    given = ["--train", *files[:2], "--val", *files[2:], "--out", str(out), "--epochs", str(epochs), "--decay", "1"]
    given += ["--warmup", "0.6"]
    recipe.main([*given, *SIZES.split(), *more])


@pytest.fixture(scope="module")
def trained(recipe, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "model"
    train(recipe, data, out, EPOCHS)
    return out


def test_it_learns_and_keeps_every_epoch(trained, data):
    scores = json.loads((trained / "scores.json").read_text())["bleu_20_val_sentences_greedy"]
    assert list(scores) == [f"epoch-{number}" for number in range(1, EPOCHS + 1)]
    assert scores[f"epoch-{EPOCHS}"] > 40 > scores["epoch-1"]
    assert len(list((trained / "checkpoints").iterdir())) == EPOCHS
    tokenizer = AutoTokenizer.from_pretrained(trained / "model")
    val = Translation(data / "val.en", tokenizer, target_data=data / "val.fr")
    for directory, name in ((trained / "model", f"epoch-{EPOCHS}"), (trained / "checkpoints" / "epoch-2", "epoch-2")):
        assert evaluate(load(directory), val).score() == pytest.approx(scores[name], abs=0.01)


def test_resuming_gives_the_same_weights_bit_for_bit(recipe, data, trained, tmp_path, monkeypatch):
    keep = recipe.Checkpointer.keep

    def stopping(checkpoint, state, *more):
        keep(checkpoint, state, *more)
        if len(state["scores"]) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(recipe.Checkpointer, "keep", stopping)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, data, tmp_path / "model", EPOCHS)
    monkeypatch.setattr(recipe.Checkpointer, "keep", keep)
    train(recipe, data, tmp_path / "model", EPOCHS)
    whole, resumed = (load_file(path / "model" / "model.safetensors") for path in (trained, tmp_path / "model"))
    assert whole.keys() == resumed.keys()
    assert all(whole[name].equal(resumed[name]) for name in whole)


def test_another_setting_does_not_resume_there(recipe, data, trained):
    with pytest.raises(RunConflict, match="resume"):
        train(recipe, data, trained, 6, "--lr", "0.02")


def test_no_pickles(trained):
    kinds = {path.suffix for path in trained.rglob("*") if path.is_file()}
    assert kinds <= {".json", ".safetensors"}


def test_batches_hold_all_examples_once_and_stay_in_budget_on_both_sides(recipe, data):
    options = recipe.arguments(["--train", f"{data}/train.en", f"{data}/train.fr", "--val", "", "", "--out", ""])
    options.tokens = 60
    tokenizer = recipe.shared_tokenizer(data / "tokenizer", options)
    task = Translation(data / "train.en", tokenizer, target_data=data / "train.fr")
    training = recipe.TranslatorTraining(recipe.new_model(len(tokenizer), options), task, options)
    first, second = training.plan(0), training.plan(1)
    for batches in (first, second):
        assert sorted(index for some in batches for index in some) == list(range(len(task)))
        for side in (task.labels, task.features["input_ids"]):
            assert max(max(len(side[i]) for i in some) * len(some) for some in batches) <= 60
    assert {frozenset(some) for some in first} != {frozenset(some) for some in second}
    assert training.plan(1) == second
