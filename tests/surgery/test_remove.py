"""`remove`: copies, names, grouped keys, training and precision of models with heads really gone."""

from __future__ import annotations

import copy

import pytest
import torch

import zoo
from headcount import Head, HeadcountError, anatomy, capture, masked, remove
from oracle import off_by, parameters, run, zeroed

DECODERS = ["llama", "mistral", "mistral-sliding", "qwen2", "qwen3", "gemma", "phi3"]


def heads_of(site, *indices):
    return [f"{site}.{index}" for index in indices]


def test_a_copy_leaves_the_model_alone():
    model = zoo.build("bert")
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    smaller = remove(model, "encoder.0.1")
    assert smaller is not model
    assert len(anatomy(model).heads) == 12
    assert not hasattr(model.config, "headcount")
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())
    assert smaller.config.headcount["sites"]["encoder.0"] == {"kept": [0, 2, 3], "of": 4, "group": 1}


def test_in_place_is_the_model_itself():
    model = zoo.build("bert")
    expected = run(remove(model, "encoder.0.1"), zoo.inputs("bert"))
    assert remove(model, "encoder.0.1", inplace=True) is model
    assert len(anatomy(model).heads) == 11
    assert torch.equal(run(model, zoo.inputs("bert")), expected)


def test_a_refused_removal_in_place_changes_nothing():
    model = zoo.build("bert")
    before = parameters(model)
    with pytest.raises(HeadcountError, match=r"encoder\.7\.0"):
        remove(model, ["encoder.0.0", "encoder.7.0"], inplace=True)
    assert parameters(model) == before
    assert not hasattr(model.config, "headcount")


def test_removing_nothing_is_a_copy():
    model = zoo.build("bert")
    same = remove(model, [])
    assert torch.equal(run(same, zoo.inputs("bert")), run(model, zoo.inputs("bert")))
    assert not hasattr(same.config, "headcount")


def test_heads_keep_their_names_through_many_removals():
    model = zoo.build("gpt2")
    for gone in ("decoder.1.0", "decoder.1.2", "decoder.0.3", "decoder.1.3"):
        model = remove(model, gone)
    assert [str(head) for head in anatomy(model).site("decoder.1").heads] == ["decoder.1.1"]
    assert [str(head) for head in anatomy(model).site("decoder.0").heads] == heads_of("decoder.0", 0, 1, 2)
    with masked(model, off=Head("decoder", 1, 1)):
        masked_output = run(model, zoo.inputs("gpt2"))
    assert off_by(run(remove(model, "decoder.1.1"), zoo.inputs("gpt2")), masked_output) <= 1e-5


def test_not_inside_a_mask_or_a_capture():
    model = zoo.build("bert")
    for block in (masked(model, off="encoder.0.0"), capture(model), capture(model, contexts=False)):
        with (
            block,
            pytest.raises(HeadcountError, match=r"encoder\.0\b"),
        ):
            remove(model, "encoder.0.1")
    assert len(anatomy(remove(model, "encoder.0.1")).heads) == 11


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "bloom", "albert", "phi3"])
def test_a_deep_copy_of_a_pruned_model_is_its_own(name):
    first = anatomy(zoo.build(name)).sites[0].name
    last = anatomy(zoo.build(name)).sites[-1]
    emptied = [str(head) for head in last.heads] if last.name != first else []
    smaller = remove(zoo.build(name), [*heads_of(first, 0, 3), *emptied])
    twin = copy.deepcopy(smaller)
    batch = zoo.inputs(name)
    assert torch.equal(run(twin, batch), run(smaller, batch))
    with torch.no_grad():
        for parameter in smaller.parameters():
            parameter.zero_()
    assert off_by(run(twin, batch), run(smaller, batch)) > 1e-3
    assert anatomy(twin).heads == anatomy(smaller).heads
    assert anatomy(remove(twin, anatomy(twin).heads)).heads == ()


# ---------------------------------------------------------------------------------------------- grouped key-value heads


@pytest.mark.parametrize("name", DECODERS)
def test_a_key_value_head_goes_with_its_last_query(name):
    model = zoo.build(name)
    site = anatomy(model).site("decoder.1")
    group = heads_of("decoder.1", *range(site.group))
    almost = remove(model, group[:-1])
    assert len(anatomy(almost).site("decoder.1").kv_kept) == len(site.kv_kept)
    gone = remove(almost, group[-1:])
    assert anatomy(gone).site("decoder.1").kv_kept == site.kv_kept[1:]
    shape = _keys(gone, "decoder.1").shape
    assert shape[1] == len(site.kv_kept) - 1
    batch = zoo.inputs(name, padding="left")
    assert off_by(run(gone, batch), run(zeroed(model, name, group), batch)) <= 1e-5


def _keys(model, site):
    """The keys that a site puts into a cache: (B, kv heads, T, head size)"""
    batch = zoo.inputs("llama", padding=None)
    with torch.no_grad():
        cache = model(**batch, use_cache=True).past_key_values
    return cache.layers[int(site.split(".")[1])].keys


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        *(("llama", gone) for gone in ((0,), (0, 1, 2), (0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5, 6))),
        *((name, (1, 2, 5)) for name in DECODERS),
    ],
)
def test_uneven_groups_with_a_cache_under_every_kernel(name, gone):
    """The kernel is chosen after removal, and each choice takes effect."""
    model = zoo.build_generator(name)
    heads = [*heads_of("decoder.0", *gone), *heads_of("decoder.2", 0, 7)]
    expected_model, smaller = zeroed(model, name, heads), remove(model, heads)
    for kernel in ("sdpa", "eager", "sdpa"):
        for each in (expected_model, smaller):
            each.set_attn_implementation(kernel)
        batch = zoo.inputs(name, padding="left")
        assert off_by(run(smaller, batch), run(expected_model, batch)) <= 1e-5
    assert torch.equal(zoo.generate(smaller, name, new_tokens=4), zoo.generate(expected_model, name, new_tokens=4))


def test_even_groups_need_no_kernel_of_ours():
    even = remove(zoo.build("llama"), heads_of("decoder.0", 0, 2, 4, 6))
    assert even.layers[0].self_attn.num_key_value_groups == 1
    assert even.layers[0].self_attn.config is even.config
    uneven = remove(zoo.build("llama"), heads_of("decoder.0", 0))
    assert uneven.layers[0].self_attn.config is not uneven.config
    assert uneven.layers[1].self_attn.config is uneven.config
    even_again = remove(uneven, heads_of("decoder.0", 2, 4, 6))
    assert even_again.layers[0].self_attn.config is even_again.config


@pytest.mark.parametrize("name", ["llama", "mistral-sliding", "gemma", "phi3"])
def test_static_cache(name):
    """The first layer emptied and groups uneven, with a cache of fixed size."""
    model = zoo.build_generator(name)
    heads = [*heads_of("decoder.0", *range(8)), *heads_of("decoder.1", 0, 3, 4)]
    settings = {"cache_implementation": "static", "disable_compile": True, "new_tokens": 4}
    expected = zoo.generate(zeroed(model, name, heads), name, new_tokens=4)
    assert torch.equal(zoo.generate(remove(model, heads), name, **settings), expected)


# ---------------------------------------------------------------------------------------------- training and precision


@pytest.mark.parametrize(
    ("name", "checkpointing"),
    [(name, setting) for name in ("bert", "llama", "t5", "bloom") for setting in (False, True)] + [("albert", False)],
)
def test_a_pruned_model_trains(name, checkpointing):
    class_name = next(name for name in zoo.ZOO[name].classes[1:])
    torch.manual_seed(0)
    model = zoo.build(name, class_name)
    sites = anatomy(model).sites
    emptied = [str(head) for head in sites[-1].heads] if len(sites) > 1 else []
    smaller = remove(model, [*heads_of(sites[0].name, 0, 3), *emptied]).train()
    if checkpointing:
        smaller.gradient_checkpointing_enable()
    batch = zoo.inputs(name, model=smaller, padding=None)
    classes = smaller.config.num_labels if "Classification" in class_name else zoo.VOCAB
    target = torch.randint(0, classes, run(smaller, batch).shape[:-1])
    optimizer = torch.optim.AdamW(smaller.parameters(), lr=5e-3)
    losses = []
    for _ in range(5):
        logits = zoo.main_output(smaller(**batch))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]
    for parameter in smaller.parameters():
        assert parameter.grad is None or torch.isfinite(parameter.grad).all()
    site = anatomy(smaller).sites[0]
    assert all(module.weight.grad.abs().max() > 0 for _, module in site.inputs)


def test_frozen_weights_stay_frozen():
    model = zoo.build("bert")
    model.encoder.layer[0].requires_grad_(False)
    smaller = remove(model, "encoder.0.0,encoder.1.0")
    assert not smaller.encoder.layer[0].attention.self.query.weight.requires_grad
    assert smaller.encoder.layer[1].attention.self.query.weight.requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["bert", "llama", "t5", "bloom", "albert", "mpnet", "vit", "whisper"])
def test_half_precision(name, dtype):
    model = zoo.build(name)
    sites = anatomy(model).sites
    emptied = [str(head) for head in sites[-1].heads] if len(sites) > 1 else []
    heads = [*heads_of(sites[0].name, 0), *emptied]
    batch = zoo.inputs(name)
    half = {key: value.to(dtype) if value.is_floating_point() else value for key, value in batch.items()}
    smaller = remove(copy.deepcopy(model).to(dtype), heads)
    assert {parameter.dtype for parameter in smaller.parameters()} == {dtype}
    found = run(smaller, half)
    assert found.dtype == dtype
    assert off_by(found.float(), run(remove(model, heads), batch)) <= 0.15
