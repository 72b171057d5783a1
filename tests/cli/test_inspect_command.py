"""`headcount inspect`: where the heads are, and the parameters and FLOPs of each, from the configuration alone."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys

import pytest

import zoo
from headcount import load, remove, save
from oracle import neuron_places, parameters, places, weight_of

KEYS = {"kind", "layer", "heads", "head_dim", "kv_heads", "parameters"}


def test_the_table(headcount, directories):
    answer = headcount("inspect", directories / "bert")
    assert answer.code == 0
    assert answer.err == ""
    assert "(BertForSequenceClassification)" in answer.out
    row = next(line for line in answer.out.splitlines() if "encoder.0-2" in line)
    assert [cell.strip() for cell in row.strip("│ ").split("│")] == [
        "encoder.0-2",
        "4",
        "6",
        "4",
        "2,400",
        "594",
        "0.55M",
    ]
    row = next(line for line in answer.out.splitlines() if "encoder_ffn.0-2" in line)
    assert [cell.strip() for cell in row.strip("│ ").split("│")] == ["encoder_ffn.0-2", "48", "2,376", "49", "0.01M"]
    for fact in ("12 heads", "144 neurons", "18,387 parameters", "39.2%", "38.8%", "128 tokens"):
        assert fact in answer.out


def test_json_has_the_fixed_keys(headcount, directories):
    answer = headcount("inspect", directories / "bert", "--json")
    facts = json.loads(answer.out)
    assert answer.code == 0
    assert {"sites", "heads", "parameters", "attention_share", "signature", "model"} <= set(facts)
    assert isinstance(facts["signature"], dict)
    assert [set(site) >= KEYS for site in facts["sites"]] == [True] * 3
    first = {"kind": "encoder", "layer": 0, "heads": 4, "head_dim": 6, "kv_heads": 4, "parameters": 2400}
    assert {key: facts["sites"][0][key] for key in KEYS} == first
    model = zoo.build("bert", "BertForSequenceClassification")
    assert (facts["heads"], facts["parameters"]) == (12, parameters(model))
    assert facts["attention_share"] == pytest.approx(3 * 2400 / parameters(model))


@pytest.mark.parametrize("name", ["bert", "albert-groups", "llama", "t5", "clip"])
def test_the_parameters_of_a_head_are_what_its_removal_saves(headcount, directories, name):
    model = zoo.build(name)
    facts = json.loads(headcount("inspect", directories / name, "--json").out)
    by_name = {f"{site['kind']}.{site['layer']}": site for site in facts["sites"]}
    assert set(by_name) == set(places(model, name))
    for site, told in by_name.items():
        assert told["head_parameters"] == weight_of(model, name, [f"{site}.0"])
        every = [f"{site}.{index}" for index in range(told["heads"])]
        bias = model.get_submodule(places(model, name)[site].output).bias
        assert told["parameters"] == weight_of(model, name, every) + (0 if bias is None else bias.numel())
        assert told["head_flops"] > 2 * 128 * told["head_parameters"]


@pytest.mark.parametrize("name", ["bert", "albert-groups", "llama", "t5", "clip"])
def test_the_parameters_of_a_neuron_are_what_its_removal_saves(headcount, directories, name):
    model = zoo.build(name)
    facts = json.loads(headcount("inspect", directories / name, "--json").out)
    by_name = {f"{site['kind']}.{site['layer']}": site for site in facts["ffn_sites"]}
    expected = neuron_places(model, name)
    assert set(by_name) == set(expected)
    assert facts["neurons"] == sum(place.heads for place in expected.values())
    for site, told in by_name.items():
        assert (told["neurons"], told["original_neurons"]) == (expected[site].heads, expected[site].heads)
        assert told["neuron_parameters"] == weight_of(model, name, [f"{site}.0"])
        assert told["neuron_flops"] == 2 * 128 * told["neuron_parameters"]
        bias = model.get_submodule(expected[site].output).bias
        size = told["neurons"] * told["neuron_parameters"] + (0 if bias is None else bias.numel())
        assert told["parameters"] == size
    assert facts["ffn_share"] == pytest.approx(
        sum(site["parameters"] for site in facts["ffn_sites"]) / facts["parameters"]
    )


def test_pruned_feed_forward_layers(headcount, tmp_path):
    save(remove(zoo.build("bert"), "encoder_ffn.0.0-9,encoder_ffn.2"), tmp_path / "model")
    facts = json.loads(headcount("inspect", tmp_path / "model", "--json").out)
    assert [site["neurons"] for site in facts["ffn_sites"]] == [38, 48, 0]
    assert [site["neuron_parameters"] for site in facts["ffn_sites"]] == [49, 49, 0]
    assert "38 of 48" in headcount("inspect", tmp_path / "model").out


def test_pruned_directories(headcount, directories):
    answer = headcount("inspect", directories / "pruned")
    rows = [line for line in answer.out.splitlines() if "encoder." in line]
    assert [[cell.strip() for cell in row.strip("│ ").split("│")][:2] for row in rows] == [
        ["encoder.0", "3 of 4"],
        ["encoder.1", "0 of 4"],
        ["encoder.2", "4"],
    ]
    facts = json.loads(headcount("inspect", directories / "pruned", "--json").out)
    assert [site["heads"] for site in facts["sites"]] == [3, 0, 4]
    assert [site["original_heads"] for site in facts["sites"]] == [4, 4, 4]
    assert facts["sites"][1]["parameters"] == 24  # the bias of the output projection stays
    assert facts["heads"] == 7


def test_shared_keys_and_shared_layers_are_said(headcount, directories):
    uneven = headcount("inspect", directories / "uneven")
    assert "share keys and values" in uneven.out
    assert "share keys and values" not in headcount("inspect", directories / "bert").out
    facts = json.loads(headcount("inspect", directories / "uneven", "--json").out)
    assert [(site["heads"], site["kv_heads"]) for site in facts["sites"]] == [(7, 4), (6, 3), (8, 4)]
    albert = headcount("inspect", directories / "albert-groups")
    assert re.search(r"encoder\.0 also serves layers 1\b", albert.out)
    assert re.search(r"encoder\.2 also serves layers 3\b", albert.out)


def test_only_the_configuration_is_needed(headcount, directories, tmp_path):
    (tmp_path / "config.json").write_text((directories / "bert" / "config.json").read_text())
    assert headcount("inspect", tmp_path).code == 0
    longer = json.loads(headcount("inspect", tmp_path, "--length", 512, "--json").out)
    assert longer["length"] == 512
    assert longer["sites"][0]["head_flops"] == 2 * 512 * 594 + 4 * 512**2 * 6


LARGE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256,
}  # fmt: skip


def test_seventy_billion_parameters_in_little_memory(tmp_path):
    """A process of its own: it builds no weights, and uses less than 2 GB."""
    (tmp_path / "config.json").write_text(json.dumps(LARGE))
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    answer = subprocess.run(
        [sys.executable, "-c", "from headcount.cli import main; main()", "inspect", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr == ""
    facts = json.loads(answer.stdout)
    assert facts["heads"] == 80 * 64
    assert facts["neurons"] == 80 * 28672
    assert facts["ffn_sites"][79]["neuron_parameters"] == 3 * 8192
    assert facts["parameters"] == 70_553_706_496
    assert facts["sites"][79]["head_parameters"] == 2 * 128 * 8192
    assert max(before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) < 2 * 2**20  # in KiB


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no/such/directory"], "no/such/directory"),
        (["./nowhere"], "nowhere is not a directory"),
    ],
)
def test_what_is_not_there(headcount, arguments, says):
    answer = headcount("inspect", *arguments)
    assert answer.code == 1
    assert answer.out == ""
    assert answer.err.startswith("headcount: ")
    assert len(answer.err.splitlines()) == 1
    assert re.search(says, answer.err)


def test_a_directory_that_makes_no_sense(headcount, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"], "headcount": 7}')
    answer = headcount("inspect", tmp_path)
    assert answer.code == 1
    assert str(tmp_path / "config.json") in answer.err
    assert "'headcount'" in answer.err
    (tmp_path / "config.json").write_text("nonsense")
    assert str(tmp_path / "config.json") in headcount("inspect", tmp_path).err


def test_a_model_without_known_attention(headcount, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "resnet", "architectures": ["ResNetModel"]}')
    answer = headcount("inspect", tmp_path, "--json")
    assert answer.code == 1
    assert answer.out == ""
    assert "ResNetModel" in answer.err


def test_shared_embeddings_count_once(headcount, directories):
    answer = headcount("inspect", directories / "t5", "--json")
    model = load(directories / "t5")
    assert json.loads(answer.out)["parameters"] == sum(weight.numel() for weight in model.parameters())
