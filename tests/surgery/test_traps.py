"""The traps that were found in the source of transformers, one test each, by name."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

import zoo
from headcount import anatomy, evaluate, load, masked, remove, save
from headcount.errors import BadCheckpoint
from oracle import off_by, places, run, zeroed
from zoo_tasks import ZooTask


def heads_of(site, *indices):
    return [f"{site}.{index}" for index in indices]


def check_removal(name, heads, **settings):
    """Removal against zeroed columns, on both paddings; returns the pruned model."""
    model = zoo.build(name, **settings)
    expected, smaller = zeroed(model, name, heads), remove(model, heads)
    for side in ("left", "right"):
        batch = zoo.inputs(name, padding=side)
        assert off_by(run(smaller, batch), run(expected, batch)) <= 1e-5
    return smaller


def test_emptied_first_decoder_layer_and_the_cache():
    """`get_seq_length()` reads layer 0: without heads there, cached logits of a tiny Llama were off by 12.

    All decoders: `test_emptied_first_decoder_layer_does_not_break_the_cache` in the central test.
    """
    model = remove(zoo.build_generator("llama"), heads_of("decoder.0", *range(8)))
    ids = zoo.inputs("llama", padding=None)["input_ids"]
    with torch.no_grad():
        cache = model(ids[:, :5], use_cache=True).past_key_values
        assert cache.get_seq_length() == 5
        cached = model(ids[:, 5:], past_key_values=cache).logits
        assert cache.get_seq_length() == 9
        assert off_by(cached, model(ids, use_cache=False).logits[:, 5:]) <= 1e-5


def test_opt_views_by_its_number_of_heads():
    smaller = check_removal("opt", [*heads_of("decoder.0", 0, 2), *heads_of("decoder.1", 3)])
    assert [layer.self_attn.num_heads for layer in smaller.decoder.layers] == [2, 3, 4]


def test_whisper_views_keys_and_values_on_its_own():
    heads = [
        *heads_of("encoder.0", 0, 1),
        *heads_of("decoder.1", 1),
        *heads_of("cross.0", 0, 2, 3),
        *heads_of("cross.1", 1),
    ]
    smaller = check_removal("whisper", heads)
    assert smaller.decoder.layers[0].encoder_attn.k_proj.weight.shape == (6, 24)
    model = zoo.build_generator("whisper")
    expected = zoo.generate(zeroed(model, "whisper", heads), "whisper", beams=2, new_tokens=5)
    assert torch.equal(zoo.generate(remove(model, heads), "whisper", beams=2, new_tokens=5), expected)


def test_bloom_takes_its_own_heads_share_of_alibi():
    """Heads have different slopes: keeping the last ones must not give them the slopes of the first."""
    smaller = check_removal("bloom", [*heads_of("decoder.0", 0, 1), *heads_of("decoder.1", 1, 2)])
    assert [block.self_attention.num_heads for block in smaller.h] == [2, 2, 4]


@pytest.mark.parametrize("name", ["deberta-v2", "deberta-v2-shared", "deberta-v2-absolute"])
def test_deberta_keeps_its_head_size(name):
    """`(heads, -1)` would make heads of another size without an error; positions have projections of their own."""
    smaller = check_removal(name, [*heads_of("encoder.0", 0, 1), *heads_of("encoder.2", 2)])
    attention = smaller.encoder.layer[0].attention.self
    assert (attention.num_attention_heads, attention.attention_head_size, attention.all_head_size) == (2, 6, 12)
    if name == "deberta-v2":
        assert attention.pos_key_proj.weight.shape == attention.pos_query_proj.weight.shape == (12, 24)


def test_mpnet_takes_its_own_heads_share_of_the_bias():
    smaller = check_removal(
        "mpnet", [*heads_of("encoder.0", 0, 1, 2), *heads_of("encoder.1", 1), *heads_of("encoder.2", 0)]
    )
    assert [layer.attention.attn.all_head_size for layer in smaller.encoder.layer] == [6, 18, 18]
    assert smaller.encoder.relative_attention_bias.weight.shape[1] == 4  # shared by all layers: it stays


def test_t5_replays_a_first_layer_that_lost_heads():
    """A replayed layer hands on the bias of all heads, as the next layers may have more than it has left."""
    model = remove(ZooTask.model("t5"), [*heads_of("encoder.0", 0, 2), *heads_of("decoder.0", 1)])
    task, masks = ZooTask("t5", model), [(), *([head] for head in anatomy(model).heads)]
    fast, plain = (evaluate(model, task, masks, fast=fast).values for fast in (True, False))
    assert off_by(torch.tensor(fast), torch.tensor(plain)) <= 1e-5


@pytest.mark.parametrize(
    "settings",
    [{}, {"scale_attn_by_inverse_layer_idx": True}, {"reorder_and_upcast_attn": True}, {"add_cross_attention": True}],
)
def test_gpt2_splits_by_split_size(settings):
    config = zoo.ZOO["gpt2"].config()
    for key, value in settings.items():
        setattr(config, key, value)
    torch.manual_seed(0)
    model = transformers.GPT2Model._from_config(config, attn_implementation="eager").eval()
    zoo.randomize(model)
    heads = [*heads_of("decoder.0", 0, 2), *heads_of("decoder.1", 3)]
    batch = zoo.inputs("gpt2", padding="left")
    if "add_cross_attention" in settings:
        heads += [*heads_of("cross.0", 1), *heads_of("cross.1", 0, 1, 2, 3)]
        batch["encoder_hidden_states"] = torch.randn(3, 5, zoo.WIDTH)
    smaller = remove(model, heads)
    assert smaller.h[0].attn.split_size == 12
    with masked(model, off=heads):
        assert off_by(run(smaller, batch), run(model, batch)) <= 1e-5
    if "add_cross_attention" in settings:
        assert smaller.h[0].crossattention.q_attn.weight.shape == (24, 18)
        assert smaller.h[0].crossattention.c_attn.weight.shape == (24, 36)


def test_phi3_reads_the_number_of_heads_from_the_shared_configuration():
    smaller = check_removal("phi3", [*heads_of("decoder.0", 0, 1, 2), *heads_of("decoder.1", 5)])
    assert smaller.config.num_attention_heads == 8
    assert [layer.self_attn.config.num_attention_heads for layer in smaller.layers] == [5, 7, 8]
    assert [layer.self_attn.qkv_proj.weight.shape[0] for layer in smaller.layers] == [11 * 4, 15 * 4, 16 * 4]


@pytest.mark.parametrize("name", ["t5", "mt5"])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_t5_hands_the_whole_position_bias_on(name, kind):
    """The first layer's bias serves all layers: whatever it lost, the others get their own heads' share."""
    check_removal(name, [*heads_of(f"{kind}.0", 0, 1), *heads_of(f"{kind}.1", 3)])
    check_removal(name, [*heads_of(f"{kind}.0", 0, 1, 2, 3), *heads_of(f"{kind}.2", 0, 2)])
    smaller = check_removal(name, [*heads_of(f"{kind}.1", 0, 1, 2, 3), *heads_of(f"{kind}.2", 0, 2)])
    first = getattr(smaller, kind).block[0].layer[0].SelfAttention
    assert first.relative_attention_bias.weight.shape[1] == 4


def test_t5_cross_layers_do_not_hand_on_their_zero_bias():
    check_removal("t5", [*heads_of("cross.0", 0, 1), *heads_of("cross.1", 2)])
    check_removal("t5", [*heads_of("cross.0", 0, 1, 2, 3), *heads_of("cross.2", 1)])
    heads = [*heads_of("cross.0", 3), *heads_of("decoder.0", 0, 1, 2, 3), *heads_of("decoder.1", 2)]
    model = zoo.build_generator("t5")
    expected = zoo.generate(zeroed(model, "t5", heads), "t5", beams=2)
    assert torch.equal(zoo.generate(remove(model, heads), "t5", beams=2), expected)


def test_bloom_adds_the_residual_inside():
    model = remove(zoo.build("bloom"), heads_of("decoder.0", 0, 1, 2, 3))
    attention = model.h[0].self_attention
    hidden, residual = torch.randn(2, 3, zoo.WIDTH), torch.randn(2, 3, zoo.WIDTH)
    output = attention(hidden, residual, alibi=None, attention_mask=None)[0]
    assert torch.equal(output, residual + attention.dense.bias)


def test_albert_normalises_inside():
    model = remove(zoo.build("albert"), heads_of("encoder.0", 0, 1, 2, 3))
    attention = model.encoder.albert_layer_groups[0].albert_layers[0].attention
    hidden = torch.randn(2, 3, zoo.WIDTH)
    assert torch.equal(attention(hidden)[0], attention.LayerNorm(hidden + attention.dense.bias))


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_every_kernel_that_a_family_supports_is_tested(name):
    supported = getattr(transformers, zoo.ZOO[name].classes[0])._supports_sdpa
    assert ("sdpa" in zoo.kernels(name)) is bool(supported)
    assert "eager" in zoo.kernels(name)


def test_alberts_layers_share_one_site():
    """One name, and it acts in all layers that share the module."""
    model = zoo.build("albert")
    batch = zoo.inputs("albert")
    runs = []
    projection = model.get_submodule(places(model, "albert")["encoder.0"].output)
    with masked(model, off="encoder.0.1"):
        hook = projection.register_forward_pre_hook(lambda module, args: runs.append(args[0]))
        expected = run(model, batch)
    hook.remove()
    assert len(runs) == zoo.LAYERS
    assert all(context[..., 6:12].abs().max() == 0 < context[..., :6].abs().max() for context in runs)
    smaller = remove(model, "encoder.0.1")
    assert off_by(run(smaller, batch), expected) <= 1e-5
    assert smaller.encoder.albert_layer_groups[0].albert_layers[0].attention.query.weight.shape == (18, 24)


def test_our_kernel_keeps_the_mask_and_the_users_kernel():
    """A kernel's name without a mask function means no mask, silently; and the name counts for the whole model."""
    calls = []

    def loud(module, query, key, value, attention_mask, **kwargs):
        calls.append((query.shape[1], key.shape[1], attention_mask is not None))
        return transformers.integrations.sdpa_attention.sdpa_attention_forward(
            module, query, key, value, attention_mask, **kwargs
        )

    AttentionInterface.register("loud_kernel", loud)
    AttentionMaskInterface.register("loud_kernel", sdpa_mask)
    heads = heads_of("decoder.1", 0, 3, 4)
    model = zoo.build("llama")
    smaller = remove(model, heads)
    batch = zoo.inputs("llama", padding="left")
    expected = run(zeroed(model, "llama", heads), batch)
    smaller.set_attn_implementation("loud_kernel")
    assert off_by(run(smaller, batch), expected) <= 1e-5
    assert [query for query, _, _ in calls] == [8, 5, 8]
    assert all(mask for _, _, mask in calls)
    assert calls[1][:2] == (5, 5)  # uneven: each query head gets a view of its key head


def test_extra_keys_in_the_configuration_survive(tmp_path):
    smaller = remove(zoo.build("bert"), "encoder.0.1")
    smaller.config.favourite_colour = "green"
    again = load(save(smaller, tmp_path / "model"))
    assert again.config.favourite_colour == "green"
    assert again.config.headcount == smaller.config.headcount
    assert "per_layer_config" not in json.loads((tmp_path / "model" / "config.json").read_text())
    plain = transformers.AutoConfig.from_pretrained(tmp_path / "model")
    assert plain.headcount["sites"]["encoder.0"]["kept"] == [0, 2, 3]


@pytest.mark.parametrize("name", ["vit", "deit"])
def test_saved_names_that_differ_from_the_modules(name, tmp_path):
    """ViT and DeiT are saved under older names than their modules have: checked and loaded under both."""
    smaller = remove(zoo.build(name), [*heads_of("encoder.0", 0, 1), *heads_of("encoder.1", 2)])
    path = save(smaller, tmp_path / "model")
    with safe_open(path / "model.safetensors", framework="pt") as file:
        saved = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    assert set(saved) != set(smaller.state_dict())
    assert torch.equal(run(load(path), zoo.inputs(name)), run(smaller, zoo.inputs(name)))
    strange = next(key for key in saved if "query.weight" in key)
    saved[strange] = saved[strange][:6].contiguous()
    save_file(saved, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadCheckpoint, match=rf"model\.safetensors: {strange} has shape \[6, 24\]"):
        load(path)


def test_nothing_is_left_in_the_classes():
    """Pruned modules have classes of their own: other models of the family stay what they are."""
    before = transformers.models.t5.modeling_t5.T5Attention.forward
    smaller = remove(zoo.build("t5"), "encoder.0.0")
    assert transformers.models.t5.modeling_t5.T5Attention.forward is before
    attention = smaller.encoder.block[0].layer[0].SelfAttention
    assert isinstance(attention, transformers.models.t5.modeling_t5.T5Attention)
    assert type(attention) is not transformers.models.t5.modeling_t5.T5Attention
    assert len(anatomy(smaller).heads) == 35
