"""`headcount bench` and `headcount export`: what they print, what they write, what they refuse."""

from __future__ import annotations

import json
import sys

import pytest
import torch

import tiny_models
import zoo
from headcount import remove, save

QUICK = ("--batch", "1,2", "--length", "6", "--rounds", "2", "--threads", "1")


def test_two_models_side_by_side(headcount, directories):
    answer = headcount("bench", directories / "bert", directories / "pruned", *QUICK)
    assert answer.code == 0, answer.err
    for word in ("forward, examples/s", "speedup", "limit", "MB on disk", "MB at the peak", "one thread", "wall clock"):
        assert word in answer.out
    assert "at batch 1" in " ".join(answer.out.split())  # the verdict, however its line is broken


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
    assert facts["verdict"]


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
    assert headcount("bench", directories / "bert", "--batch", "1,x").code == 2
    answer = headcount("bench", directories / "bert", "--length", "999")
    assert answer.code == 1
    assert answer.err.endswith("cannot be measured at length 999; it reads 1 to 64 tokens\n")
    assert "is not a directory" in headcount("bench", tmp_path / "none").err
    assert "unknown dtype" in headcount("bench", directories / "bert", "--dtype", "float8").err
    assert headcount("export", directories / "bert").code == 2


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
    assert again.err == f"headcount: {file} exists already; choose another file, or replace it with --overwrite\n"
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
    assert "pip install 'headcount[onnx]'" in answer.err


@pytest.mark.slow
def test_real_data(headcount, shared, tmp_path):
    model, data = shared / "models/minilm-sst2", shared / "data/sst2/dev.tsv"
    answer = headcount("export", model, tmp_path / "a.onnx", "--data", data, "--json")
    facts = json.loads(answer.out)
    assert facts["n"] == 16
    assert facts["difference"] < 1e-4
    rows = json.loads(headcount("bench", model, "--data", data, "--batch", "1", "--rounds", "2", "--json").out)["rows"]
    assert [row["length"] for row in rows] == [23, 41]
    assert torch.get_num_threads() >= 1
