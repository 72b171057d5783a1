"""`headcount remove`: the heads that were named are gone, and the smaller model computes the same."""

from __future__ import annotations

import json

import torch

import headcount as library
import zoo
from oracle import off_by, run, zeroed

HEADS = ["encoder.0.1", "encoder.2.0", "encoder.2.3"]


def test_it_removes_and_saves(headcount, directories, tmp_path):
    answer = headcount("remove", directories / "bert", "--heads", ",".join(HEADS), "--out", tmp_path / "smaller")
    assert answer.code == 0
    assert answer.err == ""
    for fact in ("Removed 3 heads", "9 left", "18,387", "16,605", "-9.7%"):
        assert fact in answer.out
    assert f"headcount.load('{tmp_path / 'smaller'}')" in answer.out.replace("\n", "")
    model = zoo.build("bert", "BertForSequenceClassification")
    expected = run(zeroed(model, "bert", HEADS), zoo.inputs("bert"))
    assert off_by(run(library.load(tmp_path / "smaller"), zoo.inputs("bert")), expected) <= 1e-5


def test_json(headcount, directories, tmp_path):
    answer = headcount("remove", directories / "bert", "--heads", HEADS[0], "--out", tmp_path / "smaller", "--json")
    facts = json.loads(answer.out)
    assert facts["removed"] == HEADS[:1]
    assert facts["left"] == 11
    assert facts["parameters_before"] - facts["parameters_after"] == 594
    assert facts["path"] == str(tmp_path / "smaller")
    assert facts["signature"]["model"]["class"] == "BertForSequenceClassification"


def test_neurons_and_sublayers(headcount, directories, tmp_path):
    arguments = ("remove", directories / "bert", "--heads", "encoder.0.1,encoder_ffn.0.0-9,encoder_ffn.2")
    answer = headcount(*arguments, "--out", tmp_path / "a", "--json")
    facts = json.loads(answer.out)
    assert facts["removed"] == ["encoder.0.1", "encoder_ffn.0.0-9", "encoder_ffn.2"]
    assert (facts["left"], facts["neurons_left"]) == (11, 144 - 58)
    assert facts["parameters_before"] - facts["parameters_after"] == 594 + 58 * (24 + 1 + 24)
    answer = headcount(*arguments, "--out", tmp_path / "b")
    assert "Removed 1 head and 58 neurons, 11 heads and 86 neurons left" in answer.out
    model = zoo.build("bert", "BertForSequenceClassification")
    neurons = [*(f"encoder_ffn.0.{i}" for i in range(10)), *(f"encoder_ffn.2.{i}" for i in range(48))]
    expected = run(zeroed(model, "bert", ["encoder.0.1", *neurons]), zoo.inputs("bert"))
    assert off_by(run(library.load(tmp_path / "b"), zoo.inputs("bert")), expected) <= 1e-5


def test_a_pruned_directory_is_cut_further(headcount, directories, tmp_path):
    assert headcount("remove", directories / "pruned", "--heads", "encoder.0.3", "--out", tmp_path / "a").code == 0
    left = [str(head) for head in library.anatomy(library.load(tmp_path / "a")).site("encoder.0").heads]
    assert left == ["encoder.0.0", "encoder.0.2"]
    answer = headcount("remove", directories / "pruned", "--heads", "encoder.0.1", "--out", tmp_path / "b")
    assert answer.code == 1
    assert "encoder.0.1" in answer.err
    assert "0, 2-3" in answer.err  # those that are left
    assert len(answer.err.splitlines()) == 1
    assert not (tmp_path / "b").exists()


def test_precision(headcount, directories, tmp_path):
    arguments = ("remove", directories / "bert", "--heads", HEADS[0], "--out", tmp_path / "half", "--dtype", "bfloat16")
    assert headcount(*arguments).code == 0
    assert library.load(tmp_path / "half").dtype == torch.bfloat16


def test_an_earlier_model_is_kept_unless_told_otherwise(headcount, directories, tmp_path):
    arguments = ("remove", directories / "bert", "--heads", HEADS[0], "--out", tmp_path / "smaller")
    assert headcount(*arguments).code == 0
    before = (tmp_path / "smaller" / "config.json").read_bytes()
    second = ("remove", directories / "bert", "--heads", HEADS[1], "--out", tmp_path / "smaller")
    refused = headcount(*second)
    assert refused.code == 1
    assert str(tmp_path / "smaller") in refused.err
    assert "--out" in refused.err
    assert "--overwrite" in refused.err
    assert (tmp_path / "smaller" / "config.json").read_bytes() == before
    assert headcount(*second, "--overwrite").code == 0
    assert (tmp_path / "smaller" / "config.json").read_bytes() != before


def test_what_cannot_be_done_is_one_sentence(headcount, directories, tmp_path):
    cases = {
        "encoder.9.9": ("encoder.9.9", "0-2"),
        "decoder.0.0": ("'decoder'", "encoder"),
        "encoder.0.0,encoder.0.0": ("encoder.0.0", "twice"),
        "3.5": ("'3.5'", "kind.layer.index"),
    }
    for heads, facts in cases.items():
        answer = headcount("remove", directories / "bert", "--heads", heads, "--out", tmp_path / "smaller")
        assert answer.code == 1
        assert answer.out == ""
        assert [fact for fact in facts if fact not in answer.err] == []
        assert len(answer.err.splitlines()) == 1
    missing = headcount("remove", tmp_path / "nothing", "--heads", "encoder.0.0", "--out", tmp_path / "smaller")
    assert missing.code == 1
    assert str(tmp_path / "nothing") in missing.err
    assert not (tmp_path / "smaller").exists()


def test_wrong_usage(headcount, directories, tmp_path):
    for arguments in (
        ("remove", directories / "bert", "--out", tmp_path / "x"),
        ("remove", directories / "bert", "--heads", HEADS[0]),
        ("remove", directories / "bert", "--heads", " , ", "--out", tmp_path / "x"),
        ("remove", directories / "bert", "--heads", HEADS[0], "--out", tmp_path / "x", "--dtype", "float12"),
    ):
        answer = headcount(*arguments)
        assert answer.code == 2
        assert answer.err.endswith("; see headcount remove --help\n")
        assert len(answer.err.splitlines()) == 1
    assert not (tmp_path / "x").exists()
