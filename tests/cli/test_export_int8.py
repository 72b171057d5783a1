"""`headcount export --int8`, and commands that are given an .onnx file: measured, or refused by name."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

import tiny_models
from headcount import export_onnx, remove, save
from headcount.export import OnnxModel
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
    moved = tmp_path / "alone" / "a.onnx"
    moved.parent.mkdir()
    moved.write_bytes(
        (root / "a.onnx").read_bytes().replace(str(root / "model").encode(), b"x" * len(str(root / "model")))
    )
    refused = headcount("evaluate", moved, *data)
    assert refused.code == 1
    assert "tokenizer" in refused.err
    assert headcount("export", root / "model", tmp_path / "c.onnx", "--int8").code == 1  # kept


@pytest.mark.parametrize("bits", ["float32", "int8"])
def test_an_export_is_pruned_through_the_model_it_came_from_and_proved_as_an_export(headcount, place, tmp_path, bits):
    root, given, out = place, tmp_path / "given.onnx", tmp_path / "small"
    assert headcount("export", root / "model", given, *(["--int8"] if bits == "int8" else [])).code == 0
    (tmp_path / "train.tsv").write_text("".join(f"{text}\t{i % 2}\n" for i, text in enumerate(sentences(0, 24))))
    words = ("prune", given, "--score-data", tmp_path / "train.tsv", "--data", root / "dev.tsv", "--overlap", "drop")
    answer = headcount(*words, "--heads", 2, "--out", out, "--json")
    assert answer.code == 0, answer.err
    facts = json.loads(answer.out)
    onnx = facts["onnx"]
    assert onnx["path"] == (out / "model.onnx").as_posix()
    assert onnx["size"] == (out / "model.onnx").stat().st_size
    assert onnx["n"] == facts["n"]
    assert OnnxModel(out / "model.onnx").is_int8 == OnnxModel(given).is_int8 == (bits == "int8")
    test = tmp_path / "test.tsv"
    test.write_text("".join(f"{text}\t{i % 2}\n" for i, text in enumerate(sentences(2, 24))))
    told = headcount(*words, "--test", test, "--heads", 2, "--out", tmp_path / "tested")
    assert told.code == 0, told.err
    assert f"Exported to {tmp_path / 'tested/model.onnx'}" in told.out.replace("\n", "")
    compared = json.loads(headcount("compare", given, tmp_path / "tested/model.onnx", "--data", test, "--json").out)
    proof = json.loads((tmp_path / "tested/run.json").read_text())["onnx"]
    assert {name: proof[name] for name in ("before", "after", "low", "high", "n", "bound")} == {
        name: compared[name] for name in ("before", "after", "low", "high", "n", "bound")
    }


def test_an_exported_translator_is_pruned_and_proved_as_its_two_files(headcount, tmp_path):
    save(tiny_models.marian(), tmp_path / "translator", tokenizer=word_tokenizer(WORDS, "marian"))
    for name, start in (("train", 0), ("dev", 1), ("test", 2)):
        texts = sentences(start, 8)
        (tmp_path / f"{name}.en").write_text("".join(f"{text}\n" for text in texts))
        (tmp_path / f"{name}.fr").write_text("".join(f"le {text}\n" for text in texts))
    given, out = tmp_path / "given.onnx", tmp_path / "small"
    assert headcount("export", tmp_path / "translator", given).code == 0
    data = [
        *("--score-data", tmp_path / "train.en", "--score-target-data", tmp_path / "train.fr"),
        *("--data", tmp_path / "dev.en", "--target-data", tmp_path / "dev.fr"),
        *("--test", tmp_path / "test.en", "--test-target-data", tmp_path / "test.fr", "--overlap", "drop"),
    ]
    answer = headcount("prune", given, *data, "--heads", 4, "--out", out, "--json")
    assert answer.code == 0, answer.err
    proof = json.loads(answer.out)["onnx"]
    assert (proof["metric"], proof["n"]) == ("bleu", 8)
    written = [out / f"model.{part}.onnx" for part in ("encoder", "decoder")]
    assert proof["size"] == sum(file.stat().st_size for file in written)


def test_an_export_whose_model_is_gone_or_changed_is_not_pruned(headcount, place, tmp_path):
    model, given = tmp_path / "model", tmp_path / "given.onnx"
    shutil.copytree(place / "model", model)
    assert headcount("export", model, given).code == 0
    data = ("--score-data", place / "dev.tsv", "--data", place / "dev.tsv", "--heads", 2, "--out", tmp_path / "small")
    shutil.rmtree(model)
    save(tiny_models.bert(pad_token_id=0), model, tokenizer=word_tokenizer(WORDS))
    changed = headcount("prune", given, *data)
    shutil.rmtree(model)
    gone = headcount("prune", given, *data)
    nameless = tmp_path / "nameless.onnx"
    export_onnx(tiny_models.bert(pad_token_id=0), nameless)
    unknown = headcount("prune", nameless, *data)
    for refused, fact in (
        (changed, "has other weights now"),
        (gone, "is not a directory"),
        (unknown, "does not say where"),
        (headcount("prune", nameless, *data, "--device", "cuda"), "runs on the CPU, not on cuda; leave out --device"),
    ):
        assert (refused.code, refused.out) == (1, "")
        assert fact in refused.err.replace("\n", " ")
    assert not (tmp_path / "small").exists()


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
