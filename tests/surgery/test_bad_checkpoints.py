"""Directories that are incomplete, damaged or hostile: refused before anything is loaded, naming the file."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import sys
import time

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import zoo
from headcount import HeadcountError, load, remove, save
from headcount.errors import BadCheckpoint
from oracle import run

PRUNED = ["encoder.0.1", *(f"encoder.1.{index}" for index in range(4))]


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Good directories to spoil copies of."""
    root = tmp_path_factory.mktemp("good")
    model = zoo.build("bert", "BertForSequenceClassification")
    save(model, root / "whole")
    save(remove(model, PRUNED), root / "pruned")
    save(remove(model, PRUNED), root / "shards", max_shard_size="20KB")
    save(remove(model, "encoder_ffn.0.0-9"), root / "neurons")
    save(remove(zoo.build("llama"), [f"decoder.{layer}.{i}" for layer in range(3) for i in range(4)]), root / "stock")
    return root


@pytest.fixture(autouse=True)
def nothing_is_loaded(monkeypatch):
    """Every refusal here comes before a weight is read."""

    def read(*args, **kwargs):
        raise AssertionError("weights were read")

    monkeypatch.setattr(sys.modules["headcount.surgery.loading"], "load_file", read)


@pytest.fixture
def spoil(originals, tmp_path):
    def copy(which="pruned"):
        return shutil.copytree(originals / which, tmp_path / "bad")

    return copy


def refused(directory, says, file=None):
    """Loading is refused, in one line that names the file."""
    with pytest.raises(BadCheckpoint, match=says) as refusal:
        load(directory)
    assert str(directory / file if file else directory) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


# --------------------------------------------------------------------------------------------------- files and headers


def test_no_directory(tmp_path):
    refused(tmp_path / "none", "not a directory")
    (tmp_path / "file").write_text("")
    refused(tmp_path / "file", "not a directory")
    with pytest.raises(BadCheckpoint, match=r"no-such/model.* hub"):
        load("no-such/model")


@pytest.mark.parametrize("which", ["whole", "pruned"])
@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_missing_file(spoil, which, file):
    directory = spoil(which)
    (directory / file).unlink()
    refused(directory, "is missing", file)


def test_a_missing_shard(spoil):
    directory = spoil("shards")
    shard = sorted(directory.glob("model-*.safetensors"))[1]
    shard.unlink()
    refused(directory, "is missing", shard.name)


@pytest.mark.parametrize("which", ["whole", "pruned", "shards"])
@pytest.mark.parametrize("cut", [0, 4, 8, 200, -1])
def test_a_truncated_file(spoil, which, cut):
    directory = spoil(which)
    file = sorted(directory.glob("*.safetensors"))[-1]
    file.write_bytes(file.read_bytes()[:cut])
    refused(directory, "cut short or damaged", file.name)


def test_a_file_that_is_too_long(spoil):
    directory = spoil()
    with (directory / "model.safetensors").open("ab") as file:
        file.write(b"more")
    refused(directory, "cut short or damaged", "model.safetensors")


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["classifier.bias"].update(shape=[4]),
        lambda header: header["classifier.bias"].update(shape=[2**62]),
        lambda header: header["classifier.bias"].update(data_offsets=[0, 10**15]),
        lambda header: header["classifier.bias"].update(data_offsets=[8, 4]),
        lambda header: header["classifier.bias"].update(dtype="F33"),
        lambda header: header["classifier.bias"].pop("shape"),
        lambda header: header.update({"classifier.bias": 7}),
    ],
)
def test_a_header_that_lies(spoil, change):
    directory = spoil()
    file = directory / "model.safetensors"
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header)
    written = json.dumps(header).encode()
    file.write_bytes(len(written).to_bytes(8, "little") + written + content[8 + length :])
    refused(directory, "cut short or damaged", "model.safetensors")


@pytest.mark.parametrize("which", ["whole", "pruned"])
def test_a_tensor_of_a_wrong_shape(spoil, which):
    directory = spoil(which)
    weights = load_file(directory / "model.safetensors")
    name = "bert.encoder.layer.0.attention.self.key.weight"
    shape = list(weights[name].shape)
    weights[name] = torch.zeros(shape[0] + 6, shape[1])
    save_file(weights, directory / "model.safetensors")
    says = rf"{re.escape(name)} has shape \[{shape[0] + 6}, 24\], but config\.json makes it \[{shape[0]}, 24\]"
    refused(directory, says, "model.safetensors")


@pytest.mark.parametrize(
    "name",
    ["../outside.safetensors", "/etc/passwd", "sub/model.safetensors", "..", "", "model.bin", 7, None, ["a"]],
)
def test_an_index_that_points_elsewhere(spoil, name, tmp_path):
    directory = spoil("shards")
    shutil.copy(sorted(directory.glob("model-*.safetensors"))[0], tmp_path / "outside.safetensors")
    edit(
        directory / "model.safetensors.index.json", lambda index: index["weight_map"].update({"classifier.bias": name})
    )
    refused(directory, re.escape(repr(name)), "model.safetensors.index.json")


def test_an_index_that_promises_too_much(spoil):
    directory = spoil("shards")
    index = directory / "model.safetensors.index.json"
    shard = json.loads(index.read_text())["weight_map"]["classifier.bias"]
    edit(index, lambda content: content["weight_map"].update({"classifier.ghost": shard}))
    refused(directory, r"'classifier\.ghost'", shard)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": {}}', '{"weight_map": [1]}'])
def test_an_index_without_a_map(spoil, content):
    directory = spoil("shards")
    (directory / "model.safetensors.index.json").write_text(content)
    refused(directory, "weight_map", "model.safetensors.index.json")


# ------------------------------------------------------------------------------------------------------------- JSON


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"not json", b"\xff\xfe\x00", b"[" * 100_000, b'{"a": 1} trailing', b"\x00" * 64],
)
@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json", "generation_config.json"])
def test_json_that_is_not_json(spoil, file, content):
    directory = spoil("shards")
    (directory / file).write_bytes(content)
    refused(directory, "JSON", file)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json", "generation_config.json"])
def test_json_that_is_no_object(spoil, file):
    directory = spoil("shards")
    (directory / file).write_text("[1, 2]")
    refused(directory, "JSON object", file)


def test_a_directory_in_place_of_a_file(spoil):
    directory = spoil()
    (directory / "config.json").unlink()
    (directory / "config.json").mkdir()
    refused(directory, "cannot be read: Is a directory", "config.json")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": None}, "'architectures'"),
        ({"architectures": []}, "'architectures'"),
        ({"architectures": "BertModel"}, "'architectures'"),
        ({"architectures": [7]}, "architecture 7"),
        ({"architectures": ["BertForMindReading"]}, "'BertForMindReading'"),
        ({"architectures": ["AutoConfig"]}, "'AutoConfig'"),
        ({"architectures": ["pipeline"]}, "'pipeline'"),
        ({"architectures": ["GPT2Model"]}, "'GPT2Model'.* bert"),
        ({"model_type": "no-such-model"}, "model type 'no-such-model'"),
        ({"model_type": None}, "model type None"),
        ({"model_type": ["bert"]}, r"model type \['bert'\]"),
        ({"num_hidden_layers": "three"}, "config.json"),
        ({"hidden_size": -24}, "config.json"),
        ({"hidden_size": 25}, "config.json"),
        ({"num_attention_heads": 0}, "config.json"),
        ({"hidden_act": "no-such-function"}, "BertForSequenceClassification.*no-such-function"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantized"),
    ],
)
def test_configurations_that_make_no_sense(spoil, changes, says):
    directory = spoil("whole")
    edit(directory / "config.json", lambda config: config.update(changes))
    refused(directory, says, "config.json")


def test_an_architecture_that_is_missing(spoil):
    directory = spoil("whole")
    edit(directory / "config.json", lambda config: config.pop("architectures"))
    refused(directory, "'architectures'", "config.json")


def test_a_generation_configuration_that_makes_no_sense(tmp_path):
    path = save(zoo.build_generator("gpt2"), tmp_path / "model")
    edit(path / "generation_config.json", lambda config: config.update(max_new_tokens=-3))
    with pytest.raises(BadCheckpoint, match=r"generation_config\.json.*max_new_tokens"):
        load(path)


# ------------------------------------------------------------------------------------------------- the record of heads


SENSE = {"kept": [0, 2, 3], "of": 4, "group": 1}


@pytest.mark.parametrize(
    "record",
    [
        *([], 7, "heads", {}, {"sites": {}}, {"sites": [1]}, {"version": 1}, {"sites": None, "version": 1}),
        *({"version": 1, "sites": {"encoder.0": entry}} for entry in (None, [], 7, {}, {"kept": [0]})),
        {"version": 2, "sites": {"encoder.0": SENSE}},
        {"version": 1, "sites": {"encoder": SENSE}},
        {"version": 1, "sites": {"../encoder.0": SENSE}},
        *(
            {"version": 1, "sites": {"encoder.0": {**SENSE, **change}}}
            for change in (
                *({"kept": kept} for kept in ([0, 0], [2, 0], [-1, 0], [0, 4], ["0"], [0.0], [True], "012", None, {})),
                *({"of": of} for of in (0, -4, 3, "4", None, 4.0, 10**15, True)),
                *({"group": group} for group in (0, -1, 5, 3, "1", None, True)),
                *({"built": built} for built in ([], [0], [0, 1], [0, 2, 9], "all", [3, 2, 0])),
            )
        ),
    ],
)
def test_records_that_make_no_sense(spoil, record):
    directory = spoil()
    edit(directory / "config.json", lambda config: config.update(headcount=record))
    refused(directory, "make no sense|does not record heads|recorded in version", "config.json")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda sites: sites.pop("encoder.2"), r"encoder\.2"),
        (lambda sites: sites.update({"encoder.3": SENSE}), r"encoder\.3; .*encoder\.0"),
        (lambda sites: sites.update({"decoder.0": SENSE}), r"decoder\.0"),
        (lambda sites: sites["encoder.0"].update(of=8), r"3 heads of 8 for encoder\.0.* 4 heads"),
        (lambda sites: sites["encoder.0"].update(group=2), r"encoder\.0.* 4 heads"),
        (
            lambda sites: sites["encoder.0"].update(kept=[0, 1]),
            r"has shape \[24, 18\], but config\.json makes it \[24, 12",
        ),
        (lambda sites: sites["encoder.0"].update(built=[0, 2, 3]), r"encoder\.0.* 4 heads"),
    ],
)
def test_records_that_do_not_fit_the_model(spoil, change, says):
    directory = spoil()
    edit(directory / "config.json", lambda config: change(config["headcount"]["sites"]))
    with pytest.raises(BadCheckpoint, match=says):
        load(directory)


@pytest.mark.parametrize(
    "change",
    [
        *({"kept": kept} for kept in ([10, 11], None, 7, "0-48", "5-3", "3, 1", "0-3, 2-5", "0-3, 4", "1,2", " 1")),
        *({"kept": kept} for kept in ("0-999999", "0-9999999999", "-1", "0--1", "a", "1.5", "٣", "1\n", "1, ")),
        {"group": 2},
        {"of": 10**6},
        {"built": "0-9"},  # not what is kept
        {"built": [10]},
        {"built": ""},
    ],
)
def test_neurons_that_make_no_sense(spoil, change):
    directory = spoil("neurons")
    edit(directory / "config.json", lambda config: config["headcount"]["sites"]["encoder_ffn.0"].update(change))
    refused(directory, r"encoder_ffn\.0 make no sense", "config.json")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda sites: sites.pop("encoder_ffn.2"), r"neurons.* encoder_ffn\.2"),
        (lambda sites: sites.update({"encoder_ffn.3": {"kept": "0", "of": 2, "group": 1}}), r"encoder_ffn\.3"),
        (lambda sites: sites.update({"cross_ffn.0": {"kept": "0", "of": 2, "group": 1}}), r"cross_ffn\.0"),
        (lambda sites: sites["encoder_ffn.0"].update(of=64), r"38 neurons of 64 for encoder_ffn\.0.* 48 neurons"),
        (lambda sites: sites["encoder_ffn.0"].update(kept="0-3"), r"has shape \[38\], but config\.json makes it \[4\]"),
        (lambda sites: sites["encoder_ffn.0"].update(built="10-47"), r"encoder_ffn\.0.* 48 neurons"),
    ],
)
def test_neurons_that_do_not_fit_the_model(spoil, change, says):
    directory = spoil("neurons")
    edit(directory / "config.json", lambda config: change(config["headcount"]["sites"]))
    with pytest.raises(BadCheckpoint, match=says):
        load(directory)


def test_more_neurons_than_any_model_has(spoil):
    directory = spoil("neurons")
    edit(directory / "config.json", lambda config: config.update(intermediate_size=10**12))
    refused(directory, "intermediate_size", "config.json")


def test_a_huge_record_is_refused_at_once(spoil):
    """The largest record that makes sense in itself: reading it takes time in proportion to its size."""
    directory, many = spoil(), 100_000
    huge = {"kept": list(range(many)), "of": many, "group": 1}
    edit(directory / "config.json", lambda config: config["headcount"]["sites"].update({"encoder.0": huge}))
    started = time.monotonic()
    with pytest.raises(BadCheckpoint, match=r"100000 heads of 100000 for encoder\.0"):
        load(directory)
    assert time.monotonic() - started < 20  # by looking up each head in a list, it would take minutes


def test_a_stock_record_that_does_not_fit(spoil):
    directory = spoil("stock")
    edit(directory / "config.json", lambda config: config["headcount"]["sites"]["decoder.1"].update(built=[4, 5, 6]))
    with pytest.raises(BadCheckpoint, match=r"decoder\.1.*4, 5, 6"):
        load(directory)


# ----------------------------------------------------------------------------------------------- code in the directory


class Bomb:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return (open, (self.mark, "w"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "weights.pkl", "model.ckpt"])
def test_a_pickle_is_never_opened(spoil, name, tmp_path):
    directory = spoil("whole")
    (directory / "model.safetensors").unlink()
    (directory / name).write_bytes(pickle.dumps(Bomb(tmp_path / "mark")))
    refused(directory, "pickle", name)
    assert not (tmp_path / "mark").exists()


def test_a_pickle_that_calls_itself_safetensors(spoil, tmp_path):
    directory = spoil("whole")
    (directory / "model.safetensors").write_bytes(pickle.dumps(Bomb(tmp_path / "mark")))
    refused(directory, "safetensors file", "model.safetensors")
    assert not (tmp_path / "mark").exists()


CODE = "open({mark!r}, 'w').write('ran')\nfrom transformers import BertConfig, BertModel\n"
CODE += "class Config(BertConfig): pass\nclass Model(BertModel): pass\ndef generate(*args, **kwargs): pass\n"


@pytest.fixture
def real_load(monkeypatch):
    monkeypatch.setattr(sys.modules["headcount.surgery.loading"], "load_file", load_file)


def test_code_in_the_directory_is_never_run(spoil, real_load, tmp_path):
    directory = spoil("pruned")
    mark = tmp_path / "mark"
    expected = run(load(directory), zoo.inputs("bert"))
    for name in ("modeling.py", "configuration.py", "__init__.py"):
        (directory / name).write_text(CODE.format(mark=str(mark)))
    (directory / "custom_generate").mkdir()
    (directory / "custom_generate" / "generate.py").write_text(CODE.format(mark=str(mark)))
    auto = {"AutoConfig": "configuration.Config", "AutoModel": "modeling.Model"}
    edit(
        directory / "config.json", lambda config: config.update(auto_map=auto, custom_pipelines={"x": {"impl": "m.M"}})
    )
    assert torch.equal(run(load(directory), zoo.inputs("bert")), expected)
    assert torch.equal(run(load(directory, trust_remote_code=True), zoo.inputs("bert")), expected)
    assert not mark.exists()


def test_an_unknown_model_with_code_is_refused(spoil, tmp_path):
    directory = spoil("whole")
    (directory / "configuration.py").write_text(CODE.format(mark=str(tmp_path / "mark")))
    auto = {"AutoConfig": "configuration.Config"}
    edit(directory / "config.json", lambda config: config.update(auto_map=auto, model_type="mine"))
    refused(directory, "model type 'mine'", "config.json")
    assert not (tmp_path / "mark").exists()


def test_files_that_transformers_would_look_at_are_not(spoil, real_load, tmp_path):
    """Another weight file named in the configuration, and another configuration: not asked for."""
    directory = spoil("whole")
    expected = run(load(directory), zoo.inputs("bert"))
    (directory / "evil.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "mark")))
    other = {"transformers_weights": "evil.bin", "configuration_files": ["config.4.0.0.json"]}
    edit(directory / "config.json", lambda config: config.update(other))
    (directory / "config.4.0.0.json").write_text("not json")
    assert torch.equal(run(load(directory), zoo.inputs("bert")), expected)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "_attn_implementation_internal"])
def test_a_kernel_from_elsewhere_is_refused(spoil, key):
    directory = spoil("whole")
    edit(directory / "config.json", lambda config: config.update({key: "someone/kernel"}))
    refused(directory, "'someone/kernel'", "config.json")
    edit(
        directory / "config.json", lambda config: (config.pop(key), config.update(text_config={key: "someone/kernel"}))
    )
    refused(directory, "kernel", "config.json")


def test_an_adapter_is_refused_by_name(spoil):
    directory = spoil("whole")
    (directory / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/etc", "peft_type": "LORA"}))
    refused(directory, r"PEFT.*merge_and_unload", "adapter_config.json")


# ------------------------------------------------------------------------------------------------------- strict loading


def test_weights_that_are_missing_are_not_made_up(spoil, real_load):
    """transformers would fill them with random numbers and a warning."""
    for which in ("whole", "pruned"):
        directory = spoil(which)
        weights = load_file(directory / "model.safetensors")
        del weights["classifier.weight"]
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        refused(directory, r"classifier\.weight.*BertForSequenceClassification")
        shutil.rmtree(directory)


def test_weights_that_nobody_knows(spoil, real_load):
    directory = spoil("pruned")
    weights = load_file(directory / "model.safetensors")
    weights["classifier.ghost"] = torch.zeros(3)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    refused(directory, r"BertForSequenceClassification.*classifier\.ghost")


def test_a_single_file_goes_before_an_index(spoil, real_load, originals):
    """As in transformers; what is checked is what is loaded."""
    directory = spoil("pruned")
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../a.safetensors"}}')
    assert torch.equal(run(load(directory), zoo.inputs("bert")), run(load(originals / "pruned"), zoo.inputs("bert")))


def test_plain_transformers_does_not_load_a_ragged_checkpoint_in_silence(originals):
    with pytest.raises(RuntimeError, match=r"size|shape|mismatch"):
        transformers.BertForSequenceClassification.from_pretrained(originals / "pruned")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_a_file_that_may_not_be_read(spoil):
    directory = spoil()
    (directory / "config.json").chmod(0)
    refused(directory, "cannot be read", "config.json")


def test_refusals_are_headcounts_own(tmp_path):
    with pytest.raises(HeadcountError):
        load(tmp_path)
