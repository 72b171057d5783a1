"""`headcount export --int8`, and commands that are given an .onnx file: measured, or refused by name."""

from __future__ import annotations

import json
import sys

import pytest

import tiny_models
from headcount import remove, save
from headcount.tasks.text import word_tokenizer
from toy_jobs import WORDS, sentences


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A pruned classifier with its tokenizer, and data for it."""
    root = tmp_path_factory.mktemp("int8")
    pruned = remove(tiny_models.bert(pad_token_id=0), ["encoder.0.1", "encoder_ffn.1.0-9"])
    save(pruned, root / "model", tokenizer=word_tokenizer(WORDS))
    (root / "dev.tsv").write_text("".join(f"{text}\t{i % 2}\n" for i, text in enumerate(sentences(1, 24))))
    return root


def test_int8_is_measured(headcount, place, tmp_path):
    root, data = place, ("--data", place / "dev.tsv")
    assert headcount("export", root / "model", root / "a.onnx").code == 0
    answer = headcount("export", root / "model", tmp_path / "c.onnx", "--int8", *data, "--json")
    assert answer.code == 0, answer.err
    facts = json.loads(answer.out)
    assert facts["low"] <= facts["change"] <= facts["high"]
    assert facts["n"] == 24
    assert facts["speed"]["before"] > 0
    assert facts["size"] == (tmp_path / "c.onnx").stat().st_size
    for file, score in ((root / "a.onnx", facts["before"]), (tmp_path / "c.onnx", facts["after"])):
        found = headcount("evaluate", file, *data, "--json")
        assert found.code == 0, found.err
        assert json.loads(found.out)["score"] == score
    told = headcount("export", root / "model", tmp_path / "d.onnx", "--int8", *data)
    for word in ("MB before", "accuracy on 24 examples", "95% interval", "examples/s in PyTorch"):
        assert word in told.out
    refused = headcount("evaluate", root / "a.onnx", *data, "--off", "encoder.0.0")
    assert refused.code == 1
    assert "a.onnx" in refused.err
    refused = headcount(
        "prune", root / "a.onnx", "--score-data", root / "dev.tsv", *data, "--max-drop", 1, "--out", tmp_path / "p"
    )
    assert refused.code == 1
    assert "a.onnx" in refused.err
    moved = tmp_path / "alone" / "a.onnx"
    moved.parent.mkdir()
    moved.write_bytes(
        (root / "a.onnx").read_bytes().replace(str(root / "model").encode(), b"x" * len(str(root / "model")))
    )
    refused = headcount("evaluate", moved, *data)
    assert refused.code == 1
    assert "tokenizer" in refused.err
    assert headcount("export", root / "model", tmp_path / "c.onnx", "--int8").code == 1  # kept


def test_gguf_and_push_refuse_in_one_sentence(headcount, place, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    monkeypatch.setitem(sys.modules, "gguf", sys)  # something that can be imported
    refused = headcount("export", place / "model", tmp_path / "a.gguf", "--gguf", "f16")
    assert refused.code == 1
    assert "pip install 'headcount[gguf]'" in refused.err
    monkeypatch.setitem(sys.modules, "xllamacpp", sys)
    refused = headcount("export", place / "model", tmp_path / "a.gguf", "--gguf", "f16")
    assert refused.code == 1
    assert "BertForSequenceClassification" in refused.err
    (tmp_path / "b.gguf").write_text("mine")
    refused = headcount("export", place / "model", tmp_path / "b.gguf", "--gguf", "f16")
    assert refused.code == 1
    assert "b.gguf exists already" in refused.err
    assert headcount("export", place / "model", tmp_path / "c.bin", "--gguf", "f16").code == 1
    assert headcount("export", place / "model", tmp_path / "c.gguf", "--gguf", "q4").code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["b.gguf"]
    assert (tmp_path / "b.gguf").read_text() == "mine"
    refused = headcount("push", tmp_path / "nothing", "you/small")
    assert refused.code == 1
    assert "nothing" in refused.err


def test_the_advice_can_be_followed(headcount, place, tmp_path):
    """An encoder-decoder's three files cannot be measured here, so nobody is told to."""
    save(tiny_models.marian(), tmp_path / "translator", tokenizer=word_tokenizer(WORDS, "marian"))
    three = headcount("export", tmp_path / "translator", tmp_path / "three", "--int8", "--layout", "optimum")
    one = headcount("export", place / "model", tmp_path / "one.onnx", "--int8")
    for told, elsewhere in ((three, True), (one, False)):
        assert told.code == 0, told.err
        assert ("--data" in told.out, "--layout" in told.out) == (True, elsewhere)
