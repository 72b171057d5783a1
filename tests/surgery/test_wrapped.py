"""Models that something else has wrapped: supported, or refused by name."""

from __future__ import annotations

import peft
import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch import nn

import zoo
from headcount import UnsupportedModel, anatomy, capture, masked, remove, save
from headcount.errors import HeadcountError
from oracle import off_by, run

HEADS = ["encoder.0.1", "encoder.2.0", "encoder.2.3"]


def lora(targets):
    torch.manual_seed(0)
    model = zoo.build("bert", "BertForSequenceClassification")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets, task_type="SEQ_CLS")).eval()
    zoo.randomize(wrapped)  # LoRA starts as nothing: make it something
    for parameter in wrapped.parameters():
        if parameter.dim() == 2 and min(parameter.shape) == 4:
            parameter.data.normal_(0, 0.5, generator=torch.Generator().manual_seed(1))
    return wrapped


@pytest.mark.parametrize("targets", [["query", "value"], ["query", "key", "value", "dense"]])
def test_peft_is_masked_and_after_merging_removed(targets):
    model = lora(targets)
    batch = zoo.inputs("bert")
    whole = run(model, batch)
    assert [site.name for site in anatomy(model).sites] == ["encoder.0", "encoder.1", "encoder.2"]
    with masked(model, off=HEADS):
        expected = run(model, batch)
    assert off_by(expected, whole) > 1e-3
    assert torch.equal(run(model, batch), whole)
    with capture(model) as seen:
        assert torch.equal(run(model, batch), whole)
    assert seen.attention["encoder.0"].shape == (3, 4, 9, 9)
    with pytest.raises(UnsupportedModel, match=r"peft\.tuners\.lora\.\S+Linear; .*merge_and_unload"):
        remove(model, HEADS)
    merged = model.merge_and_unload()
    assert off_by(run(merged, batch), whole) <= 1e-4
    with masked(merged, off=HEADS):
        merged_mask = run(merged, batch)
    assert off_by(merged_mask, expected) <= 1e-4
    assert off_by(run(remove(merged, HEADS), batch), merged_mask) <= 1e-5


def test_peft_is_not_saved_as_it_is(tmp_path):
    with pytest.raises(HeadcountError, match="PeftModel"):
        save(lora(["query"]), tmp_path / "model")
    model = zoo.build("bert")
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["query"]))
    with pytest.raises(HeadcountError, match="adapters"):
        save(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_torch_compile_is_refused_by_name():
    model = zoo.build("bert")
    compiled = torch.compile(model, backend="eager")
    for refused in (lambda: anatomy(compiled), lambda: remove(compiled, HEADS), lambda: list(masked_by(compiled))):
        with pytest.raises(UnsupportedModel, match=r"torch\.compile"):
            refused()
    assert len(anatomy(model).heads) == 12  # the original works
    assert len(anatomy(remove(model, HEADS)).heads) == 9


def masked_by(model):
    with masked(model, off=HEADS):
        yield model


def test_a_model_compiled_in_place_is_refused():
    """`model.compile()` changes no class, and compiled code ignores hooks: masks would do nothing, silently."""
    model = zoo.build("bert")
    model.compile(backend="eager")
    with pytest.raises(UnsupportedModel, match=r"torch\.compile"):
        anatomy(model)


def test_a_part_that_is_compiled_is_refused():
    model = zoo.build("bert")
    model.encoder.layer[1] = torch.compile(model.encoder.layer[1], backend="eager")
    with pytest.raises(UnsupportedModel, match=r"encoder\.layer\.1\) .*torch\.compile"):
        anatomy(model)


def test_data_parallel_is_refused_by_name():
    model = zoo.build("bert")
    with pytest.raises(UnsupportedModel, match=r"model\.module"):
        anatomy(nn.DataParallel(model))
    assert len(anatomy(nn.DataParallel(model).module).heads) == 12


class Linear8bitLt(nn.Linear):
    """Stands for a quantized projection: a Linear by inheritance, its weights something else."""


@pytest.mark.parametrize("where", ["query", "value"])
def test_8_bit_is_masked_and_not_removed(where):
    model = zoo.build("bert")
    batch = zoo.inputs("bert")
    expected = run(remove(model, HEADS), batch)
    for layer in model.encoder.layer:
        getattr(layer.attention.self, where).__class__ = Linear8bitLt
    with masked(model, off=HEADS):
        assert off_by(run(model, batch), expected) <= 1e-5
    with pytest.raises(UnsupportedModel, match=r"encoder\.0 .*Linear8bitLt; .*unquantized"):
        remove(model, HEADS)


class Packed(torch.Tensor):
    """Stands for weights that only look like numbers, as torchao has them."""


def test_packed_weights_are_not_removed():
    model = zoo.build("bert")
    projection = model.encoder.layer[2].attention.output.dense
    projection.weight = nn.Parameter(projection.weight.detach().as_subclass(Packed))
    with pytest.raises(UnsupportedModel, match=r"encoder\.2 .*Packed; .*unquantized"):
        remove(model, HEADS)
    assert len(anatomy(model).heads) == 12


def test_a_model_that_is_spread_over_devices_is_masked_and_not_removed():
    """accelerate replaces the modules' forward methods: what we would put there would never run."""
    model = zoo.build("bert")
    batch = zoo.inputs("bert")
    expected = run(remove(model, HEADS), batch)
    for layer in model.encoder.layer:
        add_hook_to_module(layer.attention.self, AlignDevicesHook("cpu"))
    with masked(model, off=HEADS):
        assert off_by(run(model, batch), expected) <= 1e-5
    with pytest.raises(UnsupportedModel, match=r"device_map.* encoder\.0"):
        remove(model, HEADS)
