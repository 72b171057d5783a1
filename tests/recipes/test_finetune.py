"""`recipes/finetune.py` on a toy task: it learns, and keeps the epoch that it is asked for."""

import importlib

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from headcount import Classification, HeadcountError, evaluate, load, save
from headcount.tasks.text import word_tokenizer
from toy_jobs import WORDS, sentences


@pytest.fixture
def data(tmp_path):
    tokenizer = word_tokenizer(WORDS)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**size, vocab_size=len(tokenizer), pad_token_id=0))
    save(model, tmp_path / "encoder", tokenizer=tokenizer)
    for name, start in (("train", 0), ("dev", 1)):
        rows = [f"{text}\t{int('fine' in text or 'bien' in text)}\n" for text in sentences(start, 60)]
        (tmp_path / f"{name}.tsv").write_text("".join(rows))
    return tmp_path


def train(data, out, *more):
    recipe = importlib.import_module("recipes.finetune")
    files = ["--encoder", str(data / "encoder"), "--train", str(data / "train.tsv"), "--dev", str(data / "dev.tsv")]
    recipe.main([*files, "--out", str(data / out), "--tokens", "64", "--lr", "0.01", *more])
    return evaluate(load(data / out), Classification(data / "dev.tsv", word_tokenizer(WORDS))).score()


def test_it_learns_and_says_what_it_saved(data, capsys):
    score = train(data, "model", "--epochs", "6")
    printed = capsys.readouterr().out
    assert printed.count("epoch ") == 6
    assert f"dev accuracy {score:.4f}" in printed.splitlines()[-1]
    untrained = Classification(data / "dev.tsv", word_tokenizer(WORDS))
    assert score > max(0.9, evaluate(load(data / "encoder"), untrained).score())


def test_the_best_epoch_or_the_last_one_is_kept(data, monkeypatch):
    recipe = importlib.import_module("recipes.finetune")
    scores = {"best": iter([0.5, 0.9, 0.7]), "last": iter([0.5, 0.9, 0.7])}
    kept = []
    monkeypatch.setattr(recipe, "save", lambda model, out, tokenizer: kept.append(out))
    for keep, wanted in (("best", 2), ("last", 3)):

        class Scored:
            score = staticmethod(lambda keep=keep: next(scores[keep]))

        monkeypatch.setattr(recipe, "evaluate", lambda model, dev, found=Scored: found)
        files = ["--encoder", str(data / "encoder"), "--train", str(data / "train.tsv"), "--dev", str(data / "dev.tsv")]
        recipe.main([*files, "--out", str(data / keep), "--epochs", "3", "--keep", keep])
        assert kept.count(str(data / keep)) == wanted


def test_labels_that_are_names_are_written_into_the_model(data):
    for name in ("train", "dev"):
        rows = [line.split("\t") for line in (data / f"{name}.tsv").read_text().splitlines()]
        kinds = {"0": "dull", "1": "Fine"}
        named = [f"{text}\t{'short' if text.count(' ') > 2 else kinds[label]}" for text, label in rows]
        (data / f"{name}.tsv").write_text("\n".join(["text\tlabel", *named]))
    load(data / "encoder").bert.save_pretrained(data / "encoder")  # the encoder alone, without its two classes
    train(data, "model", "--epochs", "1")
    config = load(data / "model").config
    assert config.label2id == {"Fine": 0, "dull": 1, "short": 2}
    assert config.id2label == {0: "Fine", 1: "dull", 2: "short"}
    with pytest.raises(HeadcountError, match=r"3 classes .*\b4$"):
        train(data, "other", "--labels", "4")
