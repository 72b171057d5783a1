"""Models that nobody has declared: recognised by their projections' names, and tried out before heads go."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

import zoo
from headcount import UnsupportedModel, anatomy, load, masked, remove, save
from oracle import off_by, run


class ToyConfig(PreTrainedConfig):
    model_type = "toy"


class Modern(nn.Module):
    """`q_proj/k_proj/v_proj/o_proj`, as most models since Llama."""

    def __init__(self, heads=4, size=6, width=24, **_):
        super().__init__()
        self.head_dim, self.num_heads = size, heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, heads * size) for _ in range(3))
        self.o_proj = nn.Linear(heads * size, width)

    def forward(self, hidden_states):
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        q, k, v = (p(hidden_states).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        context = (q @ k.transpose(-1, -2) / self.head_dim**0.5).softmax(-1) @ v
        return self.o_proj(context.transpose(1, 2).flatten(-2)), None


class Returning(Modern):
    """Returns a tensor where others return a tuple."""

    def forward(self, hidden_states):
        return super().forward(hidden_states)[0]


class Averaging(Modern):
    """Depends on the number of heads in silence: their outputs are averaged, not summed."""

    def forward(self, hidden_states):
        return super().forward(hidden_states)[0] * 4 / self.num_heads, None


class Reshaping(Modern):
    """Has its width written down."""

    def forward(self, hidden_states):
        return super().forward(hidden_states)[0].view(*hidden_states.shape[:-1], self.q_proj.weight.shape[0]), None


class Normalising(Modern):
    """Normalises the queries of all heads together, so that no head is alone (as in OLMo 2)."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.norm = nn.LayerNorm(24, elementwise_affine=False)

    def forward(self, hidden_states):
        hidden_states = hidden_states + self.q_proj(hidden_states).mean(-1, keepdim=True)
        return super().forward(hidden_states)


class Classic(nn.Module):
    """`query/key/value`, with the output projection in the parent's `output.dense`, as in BERT."""

    def __init__(self):
        super().__init__()
        self.num_attention_heads, self.attention_head_size = 4, 6
        self.all_head_size = 24
        self.query, self.key, self.value = (nn.Linear(24, 24) for _ in range(3))

    def forward(self, hidden_states):
        shape = (*hidden_states.shape[:-1], self.num_attention_heads, self.attention_head_size)
        q, k, v = (p(hidden_states).view(shape).transpose(1, 2) for p in (self.query, self.key, self.value))
        context = (q @ k.transpose(-1, -2) / 6**0.5).softmax(-1) @ v
        return context.transpose(1, 2).reshape(*hidden_states.shape[:-1], self.all_head_size), None


class ClassicOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(24, 24)


class ClassicBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.self, self.output = Classic(), ClassicOutput()

    def forward(self, hidden_states):
        return self.output.dense(self.self(hidden_states)[0]), None


class Dense(nn.Module):
    """`query/key/value/dense` in one module."""

    def __init__(self):
        super().__init__()
        self.attention_head_size = 6
        self.query, self.key, self.value, self.dense = (nn.Linear(24, 24) for _ in range(4))

    def forward(self, hidden_states):
        shape = (*hidden_states.shape[:-1], -1, 6)
        q, k, v = (p(hidden_states).view(shape).transpose(1, 2) for p in (self.query, self.key, self.value))
        context = (q @ k.transpose(-1, -2) / 6**0.5).softmax(-1) @ v
        return self.dense(context.transpose(1, 2).flatten(-2)), None


class Toy(PreTrainedModel):
    config_class = ToyConfig

    def __init__(self, attention, layers=2):
        super().__init__(ToyConfig())
        self.embed = nn.Embedding(zoo.VOCAB, 24)
        self.layers = nn.ModuleList(attention() for _ in range(layers))
        self.post_init()
        zoo.randomize(self)
        self.eval()

    def forward(self, input_ids):
        hidden = self.embed(input_ids)
        for layer in self.layers:
            output = layer(hidden)
            hidden = hidden + (output[0] if isinstance(output, tuple) else output)
        return {"logits": hidden}


BATCH = {"input_ids": torch.arange(4, 13).view(1, 9)}


@pytest.mark.parametrize("attention", [Modern, Returning, ClassicBlock, Dense])
def test_recognised_and_exact(attention):
    model = Toy(attention)
    found = anatomy(model)
    assert [str(head) for head in found.heads] == [f"encoder.{layer}.{n}" for layer in range(2) for n in range(4)]
    assert all(site.family.structural for site in found.sites)
    heads = ["encoder.0.0", "encoder.0.2", "encoder.1.3"]
    with masked(model, off=heads):
        expected = run(model, BATCH)
    assert off_by(expected, run(model, BATCH)) > 1e-3
    smaller = remove(model, heads)
    assert off_by(run(smaller, BATCH), expected) <= 1e-5
    assert sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in smaller.parameters()) == 3 * (
        6 * (3 * 25 + 24)
    )


class Layer(nn.Module):
    """Attention and a feed-forward layer with the usual names."""

    def __init__(self, mlp):
        super().__init__()
        self.self_attn, self.mlp = Modern(), mlp()

    def forward(self, hidden_states):
        hidden_states = hidden_states + self.self_attn(hidden_states)[0]
        return self.mlp(hidden_states), None


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(24, 40), nn.Linear(24, 40), nn.Linear(40, 24)

    def forward(self, hidden_states):
        return self.down_proj(self.gate_proj(hidden_states).sigmoid() * self.up_proj(hidden_states))


class Mixing(Gated):
    """Normalises all neurons together, so that none is alone."""

    def forward(self, hidden_states):
        return self.down_proj(self.gate_proj(hidden_states).softmax(-1) * self.up_proj(hidden_states))


def test_neurons_of_an_undeclared_family():
    model = Toy(lambda: Layer(Gated))
    found = anatomy(model, "neurons")
    assert [(site.name, len(site.kept)) for site in found.sites] == [("encoder_ffn.0", 40), ("encoder_ffn.1", 40)]
    units = ["encoder_ffn.0.3-20", "encoder_ffn.1", "encoder.0.2"]
    with masked(model, off=units):
        expected = run(model, BATCH)
    assert off_by(expected, run(model, BATCH)) > 1e-3
    assert off_by(run(remove(model, units), BATCH), expected) <= 1e-5


def test_neurons_that_are_not_alone_are_refused_on_trial():
    model = Toy(lambda: Layer(Mixing))
    with pytest.raises(UnsupportedModel, match=r"neuron from Layer .* by \d.* at encoder_ffn\.0"):
        remove(model, "encoder_ffn.0.3-20")
    assert len(anatomy(remove(model, "encoder.0.2")).heads) == 7


@pytest.mark.parametrize("attention", [Modern, ClassicBlock, Dense])
def test_emptied(attention):
    model = Toy(attention)
    heads = [f"encoder.0.{index}" for index in range(4)]
    with masked(model, off=heads):
        expected = run(model, BATCH)
    assert off_by(run(remove(model, heads), BATCH), expected) <= 1e-5


def test_the_trial_leaves_the_model_as_it_was():
    model = Toy(Modern).train()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    remove(model, "encoder.0.0")
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(before[key], tensor) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_trial_is_exact_in_half_precision_too(dtype):
    smaller = remove(Toy(Modern).to(dtype), "encoder.0.0")
    assert smaller.layers[0].q_proj.weight.shape == (18, 24)
    assert smaller.layers[0].q_proj.weight.dtype == dtype
    with pytest.raises(UnsupportedModel, match=r"Averaging.* by \d.* at encoder\.0"):
        remove(Toy(Averaging).to(dtype), "encoder.0.0")


@pytest.mark.parametrize(
    ("attention", "heads", "says"),
    [
        (
            Averaging,
            ["encoder.1.0"],
            r"Averaging.* by \d.* at encoder\.1.*CONTRIBUTING\.md",
        ),
        (Normalising, ["encoder.0.3"], r"Normalising.* by \d.* at encoder\.0"),
        (
            Reshaping,
            ["encoder.0.0"],
            r"Reshaping .*fewer heads: .*CONTRIBUTING\.md",
        ),
        (
            Returning,
            [f"encoder.0.{index}" for index in range(4)],
            r"Returning .*a tuple of 2 instead of a Tensor",
        ),
    ],
)
def test_refused_by_the_trial(attention, heads, says):
    model = Toy(attention)
    with pytest.raises(UnsupportedModel, match=says):
        remove(model, heads)
    with masked(model, off=heads):  # masking works all the same
        assert off_by(run(model, BATCH), run(Toy(attention), BATCH)) > 1e-3
    assert len(anatomy(model).heads) == 8


def test_without_inputs_to_try_it_is_refused():
    class Speechless(Toy):
        dummy_inputs = {}  # noqa: RUF012

    with pytest.raises(UnsupportedModel, match=r"Modern .*dummy inputs"):
        remove(Speechless(Modern), "encoder.0.0")


def test_a_part_that_did_not_run_is_refused():
    model = Toy(Modern)
    model.spare = Modern()
    with pytest.raises(UnsupportedModel, match=r"Modern \(encoder\.2\) .*dummy inputs"):
        remove(model, "encoder.2.0")
    assert len(anatomy(remove(model, "encoder.0.0")).heads) == 11


UNSEEN = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4}
UNSEEN |= {"intermediate_size": 48, "vocab_size": zoo.VOCAB, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 3}


@pytest.mark.parametrize("name", ["Starcoder2", "Granite", "Cohere", "StableLm", "Olmo"])
def test_unseen_families_of_transformers(name, tmp_path):
    """Grouped keys, uneven groups, an emptied layer, saved and loaded: all without a declaration."""
    config = getattr(transformers, f"{name}Config")(**UNSEEN)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    zoo.randomize(model)
    heads = ["decoder.0.0", "decoder.0.2", "decoder.0.3", *(f"decoder.1.{index}" for index in range(8))]
    batch = zoo.inputs("llama", padding="left")
    with masked(model, off=heads):
        expected = run(model, batch)
    smaller = remove(model, heads)
    assert anatomy(smaller).sites[0].kv_kept == (0, 2, 3)
    assert off_by(run(smaller, batch), expected) <= 1e-5
    again = load(save(smaller, tmp_path / name))
    assert torch.equal(run(again, batch), run(smaller, batch))


def test_an_unseen_family_whose_heads_depend_on_each_other_is_refused():
    """OLMo 2 normalises queries and keys over all heads at once: a removed head would change the others."""
    model = transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**UNSEEN)).eval()
    assert len(anatomy(model).heads) == 16
    with pytest.raises(UnsupportedModel, match=r"Olmo2Attention .*fewer heads"):
        remove(model, "decoder.0.0")


def siglip(**settings):
    size = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.SiglipVisionConfig(**size, image_size=12, patch_size=4, **settings)
    model = transformers.SiglipVisionModel(config).eval()
    zoo.randomize(model)
    return model


def test_an_unseen_vision_model_is_tried_on_an_image():
    model, batch = siglip(vision_use_head=False), zoo.inputs("vit")
    with masked(model, off="encoder.0.1"):
        expected = run(model, batch)
    assert off_by(run(remove(model, "encoder.0.1"), batch), expected) <= 1e-5


def test_a_model_that_is_recognised_only_in_part_is_refused():
    """SigLIP's pooling head attends by torch's own module: its heads would be left out in silence."""
    with pytest.raises(UnsupportedModel, match=r"SiglipVisionModel.*MultiheadAttention with out_proj"):
        anatomy(siglip())
