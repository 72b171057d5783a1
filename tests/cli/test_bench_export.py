"""`headcount bench` and `headcount export`: what they print, what they write, what they refuse."""

from __future__ import annotations

import json
import sys

import pytest

import tiny_models
import zoo
from headcount import remove, save
from headcount.tasks.text import word_tokenizer

QUICK = ("--batch", "1,2", "--length", "6", "--rounds", "2", "--threads", "1")


def test_two_models_side_by_side(headcount, directories):
    answer = headcount("bench", directories / "bert", directories / "pruned", *QUICK)
    assert answer.code == 0, answer.err
    for word in ("examples/s", "speedup", "limit", "MB on disk", "MB at the peak", "one thread", "wall clock"):
        assert word in answer.out
    said = " ".join(answer.out.split())  # however its lines are broken
    assert all(f"batch {number}" in said for number in (1, 2)) or "batch 1 and 2" in said  # the verdict


def test_a_model_that_is_not_a_cut_is_called_by_its_name(headcount, tmp_path):
    for name in ("first", "second"):  # the same architecture, nothing removed: two checkpoints
        save(tiny_models.bert(), tmp_path / name)
    save(tiny_models.bert(num_hidden_layers=1, hidden_size=32), tmp_path / "other")
    for name in ("second", "other"):
        facts = json.loads(headcount("bench", tmp_path / "first", tmp_path / name, *QUICK, "--json").out)
        assert {(row["model"], row["limit"]) for row in facts["rows"]} == {(name, None)}
        assert set(facts["sizes"]) == {"original", name}


def test_json(headcount, directories):
    answer = headcount("bench", directories / "bert", directories / "pruned", *QUICK, "--json", "--clock", "cpu")
    facts = json.loads(answer.out)
    assert [(row["batch"], row["length"]) for row in facts["rows"]] == [(1, 6), (2, 6)]
    for row in facts["rows"]:
        assert 0 < row["low"] <= row["speedup"] <= row["high"]
        assert row["original"] > 0
        assert row["pruned"] > 0
        assert 1 < row["limit"] < 3
    assert (facts["threads"], facts["clock"], facts["rounds"]) == (1, "cpu", 2)
    assert facts["sizes"]["pruned"]["disk"] == (directories / "pruned/model.safetensors").stat().st_size
    assert facts["signature"]["model"]["class"] == "BertForSequenceClassification"
    assert list(facts)[-1] == "signature"
    assert "batch 1" in facts["verdict"]
    assert "2" in facts["verdict"]


def test_a_generator_and_a_run_directory(headcount, tmp_path):
    model = zoo.build_generator("gpt2")
    save(model, tmp_path / "whole")
    save(remove(model, [f"decoder.{layer}.{index}" for layer in range(3) for index in (1, 2)]), tmp_path / "half")
    answer = headcount("bench", tmp_path / "whole", tmp_path / "half", *QUICK, "--tokens", 3, "--out", tmp_path / "run")
    assert answer.code == 0, answer.err
    assert "decoding, tokens/s" in answer.out
    assert "cache" in answer.out
    kept = json.loads((tmp_path / "run/run.json").read_text())
    row = next(iter(find(kept, "decoding")))[0]
    assert row["tokens"] == 3
    assert row["cache_original"] == 2 * row["cache_pruned"] == 2 * 4 * 3 * 24 * (6 + 3)


def find(value, key):
    """Every value under that key, however deep."""
    if isinstance(value, dict):
        yield from ([value[key]] if key in value else [])
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from find(item, key)


def test_one_model_alone(headcount, directories):
    facts = json.loads(headcount("bench", directories / "clip", *QUICK, "--json").out)
    assert facts["pruned"] is None
    assert facts["rows"][0]["speedup"] is None
    assert facts["rows"][0]["original"] > 0


def test_bad_options(headcount, directories, tmp_path):
    for wrong in (("--batch", "1,x"), ("--length", "0"), ("--clock", "sun"), ("--rounds", "0")):
        answer = headcount("bench", directories / "bert", *wrong)
        assert answer.code == 2, answer.err
        assert wrong[0] in answer.err
    answer = headcount("bench", directories / "bert", "--length", "999")
    assert answer.code == 1
    assert "999" in answer.err
    assert "64" in answer.err
    missing = headcount("bench", tmp_path / "none")
    assert missing.code == 1
    assert str(tmp_path / "none") in missing.err
    assert "float8" in headcount("bench", directories / "bert", "--dtype", "float8").err
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file/x.onnx", "/proc/x.onnx"):
        refused = headcount("export", directories / "bert", place)
        assert (refused.code, str(place) in refused.err, refused.err.count("\n")) == (1, True, 1)
    (tmp_path / "done.onnx").write_bytes(b"")
    again = headcount("export", tmp_path / "done.onnx", tmp_path / "again.onnx")
    assert (again.code, "done.onnx is an export already" in again.err) == (2, True)
    assert "1 alternating round," in headcount("bench", directories / "bert", *QUICK[:4], "--rounds", "1").out
    assert headcount("export", directories / "bert").code == 2
    assert headcount("export", directories / "bert", tmp_path / "small.txt").code == 2


def test_export_and_measure_it(headcount, tmp_path):
    model = tiny_models.bert(num_hidden_layers=1)
    save(model, tmp_path / "whole")
    save(remove(model, ["encoder.0.1"]), tmp_path / "pruned")
    file = tmp_path / "small.onnx"
    answer = headcount("export", tmp_path / "pruned", file, "--json")
    facts = json.loads(answer.out)
    assert facts["files"] == [str(file)]
    assert file.is_file()
    assert 0 <= facts["difference"] <= 1e-4
    again = headcount("export", tmp_path / "pruned", file)
    assert again.code == 1
    assert str(file) in again.err
    assert "--overwrite" in again.err
    models = ("bench", tmp_path / "whole", tmp_path / "pruned", "--onnx", file)
    rows = json.loads(headcount(*models, *QUICK, "--json").out)["rows"]
    assert [(row["model"], row["batch"]) for row in rows] == [
        *(("pruned", 1), ("small.onnx", 1)),
        *(("pruned", 2), ("small.onnx", 2)),
    ]
    assert "small.onnx: " in headcount(*models, *QUICK).out


def test_without_the_extra(headcount, directories, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    answer = headcount("export", directories / "bert", tmp_path / "a.onnx")
    assert answer.code == 1
    assert "headcount[onnx]" in answer.err


@pytest.mark.slow
def test_real_data(headcount, shared, tmp_path):
    model, data = shared / "models/minilm-sst2", shared / "data/sst2/dev.tsv"
    answer = headcount("export", model, tmp_path / "a.onnx", "--data", data, "--json")
    facts = json.loads(answer.out)
    assert facts["n"] == 16
    assert facts["difference"] < 1e-4
    rows = json.loads(headcount("bench", model, "--data", data, "--batch", "1", "--rounds", "2", "--json").out)["rows"]
    assert [row["length"] for row in rows] == [23, 41]


def test_a_directory_for_another_loader(headcount, tmp_path):
    save(remove(tiny_models.bert(), ["encoder.0.1"]), tmp_path / "pruned", tokenizer=word_tokenizer("a fine film"))
    answer = headcount("export", tmp_path / "pruned", tmp_path / "small", "--layout", "optimum", "--json")
    assert answer.code == 0, answer.err
    facts = json.loads(answer.out)
    assert facts["files"] == [str(tmp_path / "small/model.onnx")]
    assert {"config.json", "tokenizer.json"} <= {path.name for path in (tmp_path / "small").iterdir()}
    again = headcount("export", tmp_path / "pruned", tmp_path / "small", "--layout", "optimum")
    assert again.code == 1
    assert "--overwrite" in again.err
    both = headcount("export", tmp_path / "pruned", tmp_path / "b", "--layout", "genai", "--gguf", "f16")
    assert both.code == 2
    assert "--gguf" in both.err
    refused = headcount("export", tmp_path / "pruned", tmp_path / "b", "--layout", "genai")
    assert refused.code == 1
    assert "--layout" in refused.err
    assert not (tmp_path / "b").exists()
