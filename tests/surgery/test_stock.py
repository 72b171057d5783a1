"""Equal heads in every layer: a stock checkpoint that plain `from_pretrained` loads, and that keeps head names."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from transformers import AutoModel

import zoo
from headcount import anatomy, load, masked, remove, save
from oracle import off_by, run, zeroed

GROUPED = ["llama", "mistral", "mistral-sliding", "qwen2", "qwen3", "gemma", "phi3"]
STOCK = [*GROUPED, "llama-ungrouped", "t5", "mt5", "vit", "deit"]


def uniform_heads(name):
    """The same number of heads at every site; where a position bias is shared, the same ones in the whole stack."""
    found = anatomy(zoo.build(name))
    site = found.sites[0]
    if site.group > 1:
        gone = [*range(site.group), *range(3 * site.group, 4 * site.group)] if len(site.kv_kept) > 2 else [0, 5]
    else:
        gone = [0, 2, 3, 6][: len(site.kept) // 2]
    shift = 0 if name in ("t5", "mt5") or site.group > 1 else 1
    return [f"{s.name}.{(index + shift * s.layer) % len(s.kept)}" for s in found.sites for index in gone]


@pytest.mark.parametrize("name", STOCK)
def test_plain_from_pretrained_loads_it(name, tmp_path):
    model = zoo.build(name)
    heads = uniform_heads(name)
    smaller = remove(model, heads)
    path = save(smaller, tmp_path / "model")
    plain = AutoModel.from_pretrained(path).eval()
    batch = zoo.inputs(name)
    assert type(plain) is type(model)
    assert off_by(run(plain, batch), run(smaller, batch)) <= 1e-6
    assert off_by(run(plain, batch), run(zeroed(model, name, heads), batch)) <= 1e-5
    ours = load(path)
    assert torch.equal(run(ours, batch), run(smaller, batch))
    left = [str(head) for head in anatomy(model).heads if str(head) not in heads]
    for each in (plain, ours):
        assert [str(head) for head in anatomy(each).heads] == left
        assert [site.original for site in anatomy(each).sites] == [site.original for site in anatomy(model).sites]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, "from_pretrained") for name in ("llama", "qwen3", "phi3", "t5", "vit")),
        ("llama", "load"),
        ("t5", "load"),
    ],
)
def test_removed_again_it_keeps_the_original_names(name, how, tmp_path):
    model = zoo.build(name)
    first = uniform_heads(name)
    path = save(remove(model, first), tmp_path / "model")
    stock = AutoModel.from_pretrained(path).eval() if how == "from_pretrained" else load(path)
    sites = anatomy(stock).sites
    emptied = [str(head) for head in sites[-1].heads]
    second = [str(sites[0].heads[-1]), str(sites[1].heads[0]), *(emptied if len(sites) > 2 else [])]
    batch = zoo.inputs(name, padding="left")
    expected = run(zeroed(model, name, first + second), batch)
    with masked(stock, off=second):
        assert off_by(run(stock, batch), expected) <= 1e-5
    again = remove(stock, second)
    assert off_by(run(again, batch), expected) <= 1e-5
    assert [str(head) for head in anatomy(again).heads] == [
        str(head) for head in anatomy(model).heads if str(head) not in first + second
    ]
    reloaded = load(save(again, tmp_path / "again"))  # now it is ragged, on top of a stock configuration
    assert torch.equal(run(reloaded, batch), run(again, batch))
    assert anatomy(reloaded).heads == anatomy(again).heads
    last = remove(reloaded, [str(head) for head in anatomy(reloaded).heads])
    assert off_by(run(last, batch), run(zeroed(model, name, anatomy(model).heads), batch)) <= 1e-5


def test_uniform_twice_is_stock_twice(tmp_path):
    model = zoo.build("t5")
    once = load(save(remove(model, uniform_heads("t5")), tmp_path / "once"))  # heads 1 and 3 are left
    heads = [f"{site.name}.1" for site in anatomy(once).sites]
    path = save(remove(once, heads), tmp_path / "twice")
    plain = transformers.T5Model.from_pretrained(path).eval()
    assert plain.config.num_heads == 1
    batch = zoo.inputs("t5")
    assert off_by(run(plain, batch), run(zeroed(model, "t5", uniform_heads("t5") + heads), batch)) <= 1e-5
    assert {head.index for head in anatomy(plain).heads} == {3}


def test_generation_from_a_stock_checkpoint(tmp_path):
    model = zoo.build_generator("llama")
    heads = uniform_heads("llama")
    plain = transformers.LlamaForCausalLM.from_pretrained(save(remove(model, heads), tmp_path / "model"))
    assert torch.equal(
        zoo.generate(plain, "llama", new_tokens=4), zoo.generate(zeroed(model, "llama", heads), "llama", new_tokens=4)
    )


NEURONS = {
    "bert": ("intermediate_size", 38),
    "distilbert": ("hidden_dim", 38),
    "albert": ("intermediate_size", 38),
    "gpt2": ("n_inner", 86),
    "opt": ("ffn_dim", 38),
    "bart": ("decoder_ffn_dim", 38),
    "phi3": ("intermediate_size", 38),
    "t5": ("d_ff", 38),
    "vit": ("intermediate_size", 38),
}


@pytest.mark.parametrize("name", [*NEURONS, "clip", "llama"])
def test_equally_many_neurons_in_every_layer(name, tmp_path):
    """Other neurons in each layer; in Llama together with heads."""
    model = zoo.build(name)
    units = [f"{site.name}.{site.layer}-{site.layer + 9}" for site in anatomy(model, "neurons").sites]
    units += uniform_heads(name) if name == "llama" else []
    smaller = remove(model, units)
    path = save(smaller, tmp_path / "model")
    plain = AutoModel.from_pretrained(path).eval()
    batch = zoo.inputs(name)
    with masked(model, off=units):
        expected = run(model, batch)
    assert off_by(run(plain, batch), expected) <= 1e-5
    assert torch.equal(run(load(path), batch), run(smaller, batch))
    left = anatomy(smaller, ["heads", "neurons"]).heads
    assert anatomy(plain, ["heads", "neurons"]).heads == anatomy(load(path), ["heads", "neurons"]).heads == left
    content = json.loads((path / "config.json").read_text())
    if name in NEURONS:
        key, count = NEURONS[name]
        assert content[key] == count
    again = remove(plain, [str(left[-1])])  # ragged now, on top of a stock configuration
    assert torch.equal(run(load(save(again, tmp_path / "again")), batch), run(again, batch))


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("bert", ["encoder_ffn.0.0-9"]),  # other numbers in other layers
        ("bert", [f"encoder_ffn.{layer}.0-9" for layer in range(3)] + ["encoder.0.0"]),  # heads differ
        ("t5", [f"encoder_ffn.{layer}.0-9" for layer in range(3)]),  # one number for both stacks
        ("bloom", [f"decoder_ffn.{layer}.0-9" for layer in range(3)]),  # four times the hidden size
        ("gpt2", [f"decoder_ffn.{layer}" for layer in range(3)]),  # none left
    ],
    ids=["layers differ", "heads differ", "one stack", "not configurable", "none left"],
)
def test_neurons_without_a_stock_form_stay_ragged(name, units, tmp_path):
    smaller = remove(zoo.build(name), units)
    sites = configuration(smaller, tmp_path / "model")["headcount"]["sites"]
    assert all("built" not in entry for entry in sites.values())
    assert {type(entry["kept"]) for site, entry in sites.items() if "_ffn" in site} == {str}
    assert torch.equal(run(load(tmp_path / "model"), zoo.inputs(name)), run(smaller, zoo.inputs(name)))


def test_the_record_writes_neurons_as_ranges(tmp_path):
    smaller = remove(zoo.build("bert"), "encoder_ffn.0.0-3,encoder_ffn.0.7,encoder_ffn.1")
    sites = configuration(smaller, tmp_path / "model")["headcount"]["sites"]
    assert sites["encoder_ffn.0"] == {"kept": "4-6, 8-47", "of": 48, "group": 1}
    assert sites["encoder_ffn.1"]["kept"] == ""
    assert sites["encoder_ffn.2"]["kept"] == "0-47"
    assert sites["encoder.0"]["kept"] == [0, 1, 2, 3]
    heads_only = configuration(remove(zoo.build("bert"), "encoder.0.1"), tmp_path / "heads")["headcount"]["sites"]
    assert set(heads_only) == {"encoder.0", "encoder.1", "encoder.2"}


def configuration(model, directory):
    return json.loads((save(model, directory) / "config.json").read_text())


def test_the_configuration_says_what_is_left(tmp_path):
    llama = configuration(remove(zoo.build("llama"), uniform_heads("llama")), tmp_path / "llama")
    assert (llama["num_attention_heads"], llama["num_key_value_heads"], llama["head_dim"]) == (4, 2, 4)
    assert llama["headcount"]["sites"]["decoder.0"] == {
        "kept": [2, 3, 4, 5],
        "of": 8,
        "group": 2,
        "built": [2, 3, 4, 5],
    }
    assert configuration(remove(zoo.build("t5"), uniform_heads("t5")), tmp_path / "t5")["num_heads"] == 2
    vit = configuration(remove(zoo.build("vit"), uniform_heads("vit")), tmp_path / "vit")
    assert (vit["num_attention_heads"], vit["head_dim"]) == (2, 6)


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("bert", [f"encoder.{layer}.0" for layer in range(3)]),  # its head size follows from its number of heads
        ("llama", ["decoder.0.0", "decoder.0.1"]),  # other numbers in other layers
        ("llama", [f"decoder.{layer}.{index}" for layer in range(3) for index in (0, 1, 2, 4)]),  # uneven groups
        ("t5", [f"{kind}.{layer}.{layer}" for kind in ("encoder", "decoder", "cross") for layer in range(3)]),
        ("t5", [f"encoder.{layer}.0" for layer in range(3)]),
        ("llama", [f"decoder.{layer}.{index}" for layer in range(3) for index in range(8)]),
        ("llama-ungrouped", [f"decoder.{layer}.{index}" for layer in range(3) for index in (1, 7)]),  # 32 / 6: refused
    ],
    ids=[
        "bert",
        "layers differ",
        "uneven",
        "other heads in other layers share a bias",
        "one kind only",
        "none left",
        "no divisor",
    ],
)
def test_what_has_no_stock_form_stays_ragged(name, heads, tmp_path):
    smaller = remove(zoo.build(name), heads)
    content = configuration(smaller, tmp_path / "model")
    whole = zoo.ZOO[name].config()
    assert content.get("num_attention_heads", content.get("num_heads")) == whole.num_attention_heads
    assert all("built" not in facts for facts in content["headcount"]["sites"].values())
    assert torch.equal(run(load(tmp_path / "model"), zoo.inputs(name)), run(smaller, zoo.inputs(name)))


def test_the_model_in_memory_is_not_changed_by_saving(tmp_path):
    smaller = remove(zoo.build("t5"), uniform_heads("t5"))
    batch = zoo.inputs("t5")
    before = run(smaller, batch)
    save(smaller, tmp_path / "model")
    assert smaller.config.num_heads == 4
    assert torch.equal(run(smaller, batch), before)
    assert all("built" not in facts for facts in smaller.config.headcount["sites"].values())


def test_a_task_head_on_a_stock_checkpoint(tmp_path):
    """Another class on top of the same heads: names are the same."""
    path = save(remove(zoo.build("llama"), uniform_heads("llama")), tmp_path / "model")
    classifier = transformers.LlamaForSequenceClassification.from_pretrained(path)
    assert {head.index for head in anatomy(classifier).heads} == {2, 3, 4, 5}
