"""`capture`: attention maps and head outputs as the model itself computes them, and a model left as it was."""

from __future__ import annotations

import copy

import pytest
import torch

import zoo
from headcount import HeadcountError, anatomy, capture, masked, remove
from oracle import off_by, places, run

KERNELS = [(name, kernel) for name in zoo.FAMILIES for kernel in zoo.kernels(name)]


def state_of(model):
    """What capture could leave behind: hooks, attributes, and another configuration object."""
    facts = {}
    for path, module in model.named_modules():
        hooks = (len(module._forward_pre_hooks), len(module._forward_hooks))
        facts[path] = (hooks, sorted(vars(module)), id(getattr(module, "config", None)), type(module))
    return facts


def outputs_equal(one, other):
    """Every tensor of two model outputs, however deep, is the same."""
    if torch.is_tensor(one):
        return torch.equal(one, other)
    if hasattr(one, "keys"):
        return one.keys() == other.keys() and all(outputs_equal(one[key], other[key]) for key in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(outputs_equal, one, other))
    return type(one) is type(other)


def eager_weights(name, model, batch):
    """What an eager copy gives out as its attention weights, by site."""
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        output = eager(**batch, output_attentions=True)
    if name == "clip":
        return {"text": output["text_model_output"].attentions, "vision": output["vision_model_output"].attentions}
    kinds = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}
    reads = zoo.ZOO[name].reads
    if reads in ("pair", "audio"):
        return {kind: output[key] for kind, key in kinds.items()}
    return {"decoder" if reads == "prompt" else "encoder": output["attentions"]}


def real_rows(weights, batch, kind):
    """Rows of queries that are no padding; the others are noise, different in every kernel."""
    mask = batch.get("attention_mask")
    if mask is None or kind in ("cross", "vision") or weights.shape[2] != mask.shape[1]:
        return weights
    return weights * mask[:, None, :, None]


@pytest.mark.parametrize(("name", "attn"), KERNELS)
def test_attention_is_that_of_eager_and_outputs_stay(name, attn):
    model = zoo.build(name, attn=attn)
    batch = zoo.inputs(name, padding="left" if zoo.ZOO[name].reads == "prompt" else "right")
    expected = eager_weights(name, model, batch)
    with torch.no_grad():
        plain = model(**batch)
        before = state_of(model)
        with capture(model) as seen:
            inside = model(**batch)
    assert outputs_equal(plain, inside)
    assert state_of(model) == before
    for kind, layers in expected.items():
        recorded = [weights for site in places(model, name) if site.split(".")[0] == kind
                    for weights in seen.attention.calls[site]]  # fmt: skip
        if "albert" in name:
            recorded = interleave(seen, name)
        assert len(recorded) == len(layers) >= zoo.LAYERS
        for found, weights in zip(recorded, layers, strict=True):
            assert found.shape == weights.shape
            assert off_by(real_rows(found, batch, kind), real_rows(weights, batch, kind)) <= 1e-5


def interleave(seen, name):
    """ALBERT's shared site runs once for each of its layers."""
    sites = ["encoder.0"] if name == "albert" else ["encoder.0", "encoder.2"]
    assert all(len(seen.attention.calls[site]) == len(seen.contexts.calls[site]) > 1 for site in sites)
    return [weights for site in sites for weights in seen.attention.calls[site]]


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_contexts_reproduce_what_the_site_puts_out(name):
    model = zoo.build(name)
    batch = zoo.inputs(name)
    outputs, handles = {}, []
    for site, place in places(model, name).items():
        projection = model.get_submodule(place.output)
        hook = projection.register_forward_hook(
            lambda module, args, output, site=site: outputs.setdefault(site, []).append(output)
        )
        handles.append(hook)
    with torch.no_grad(), capture(model, attention=False) as seen:
        model(**batch)
    for handle in handles:
        handle.remove()
    for site, place in places(model, name).items():
        for context, output in zip(seen.contexts.calls[site], outputs[site], strict=True):
            assert context.shape[2:] == (place.heads, place.head_dim)
            with torch.no_grad():
                assert torch.equal(model.get_submodule(place.output)(context.flatten(-2)), output)
    assert not seen.attention.calls


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "bloom", "deberta-v2", "mpnet", "marian", "gpt2", "vit"])
def test_attentions_that_the_user_asks_for_stay(name):
    """Under eager, `output_attentions=True` gives the same inside the block, also when asked for the first time."""
    model, fresh = zoo.build(name, attn="eager"), zoo.build(name, attn="eager")
    batch = zoo.inputs(name)
    with torch.no_grad():
        plain = model(**batch, output_attentions=True, output_hidden_states=True)
        with capture(fresh):
            inside = fresh(**batch, output_attentions=True, output_hidden_states=True)
    assert outputs_equal(plain, inside)
    assert any("attentions" in key for key in inside)


@pytest.mark.parametrize("name", ["llama", "bert", "t5", "gpt2", "bloom", "mpnet"])
def test_a_pruned_model(name):
    """Also with uneven groups: what is left of the whole model's first layer is the same as it was there."""
    model = zoo.build(name)
    first = anatomy(model).sites[0].name
    heads = [f"{first}.0", f"{first}.2"]
    kept = [index for index in range(len(anatomy(model).sites[0].kept)) if index not in (0, 2)]
    batch = zoo.inputs(name, padding=None)
    smaller = remove(model, heads)
    before = state_of(smaller)
    with torch.no_grad():
        plain = run(smaller, batch)
        with capture(model) as whole, capture(smaller) as seen:
            zoo.main_output(model(**batch))
            inside = zoo.main_output(smaller(**batch))
    assert torch.equal(inside, zoo.main_output({"last_hidden_state": plain}))
    assert off_by(seen.attention[first], whole.attention[first][:, kept]) <= 1e-6
    assert off_by(seen.contexts[first], whole.contexts[first][:, :, kept]) <= 1e-5
    assert state_of(smaller) == before


def test_an_emptied_site_records_nothing():
    model = remove(zoo.build("bert"), [f"encoder.1.{index}" for index in range(4)])
    with torch.no_grad(), capture(model) as seen:
        model(**zoo.inputs("bert"))
    assert list(seen.attention.calls) == list(seen.contexts.calls) == ["encoder.0", "encoder.2"]
    with pytest.raises(HeadcountError, match=r"encoder\.1 .*recorded: encoder\.0, encoder\.2"):
        seen.attention["encoder.1"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("name", ["bert", "llama", "deberta-v2", "mpnet", "bloom"])
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_restored_after(error, name, attn):
    model = zoo.build(name, attn=attn if attn in zoo.kernels(name) else None)
    before = state_of(model)

    def fail():
        with capture(model):
            assert state_of(model) != before
            raise error

    with pytest.raises(error):
        fail()
    assert state_of(model) == before


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_nested_blocks_both_record(attn):
    model = zoo.build("bert", attn=attn)
    batch = zoo.inputs("bert")
    before = state_of(model)
    with torch.no_grad(), capture(model) as outer:
        model(**batch)
        with capture(model, contexts=False) as inner:
            model(**batch)
    assert len(outer.attention.calls["encoder.0"]) == 2
    assert torch.equal(inner.attention["encoder.0"], outer.attention.calls["encoder.0"][1])
    assert state_of(model) == before


def test_a_site_or_its_name_finds_what_ran_once():
    model = zoo.build("bert")
    with torch.no_grad(), capture(model, contexts=False) as seen:
        model(**zoo.inputs("bert"))
    site = anatomy(model).sites[1]
    assert torch.equal(seen.attention[site], seen.attention["encoder.1"])
    assert not seen.contexts.calls
    with torch.no_grad(), capture(model) as seen:
        model(**zoo.inputs("bert"))
        model(**zoo.inputs("bert"))
    with pytest.raises(HeadcountError, match=r"encoder\.1 ran 2 times.*\.calls\['encoder\.1'\]"):
        seen.contexts["encoder.1"]


def test_generation_records_every_step():
    model = zoo.build_generator("llama")
    with capture(model) as seen:
        zoo.generate(model, "llama", new_tokens=3, min_new_tokens=3)
    shapes = [tuple(weights.shape) for weights in seen.attention.calls["decoder.0"]]
    assert shapes == [(3, 8, 9, 9), (3, 8, 1, 10), (3, 8, 1, 11)]
    for weights in seen.attention.calls["decoder.2"][1:]:
        assert torch.allclose(weights.sum(-1), torch.ones(3, 8, 1), atol=1e-5)


def test_contexts_show_what_a_mask_has_done():
    model = zoo.build("bert")
    batch = zoo.inputs("bert")
    with torch.no_grad(), masked(model, xi={"encoder.0.1": 0.5}), capture(model) as seen:
        model(**batch)
    with torch.no_grad(), capture(model) as plain:
        model(**batch)
    assert torch.equal(seen.contexts["encoder.0"][:, :, 1], plain.contexts["encoder.0"][:, :, 1] / 2)
    assert torch.equal(seen.contexts["encoder.0"][:, :, 0], plain.contexts["encoder.0"][:, :, 0])


def test_gradients_flow_through_what_was_captured():
    model = zoo.build("bert")
    with capture(model) as seen:
        model(**zoo.inputs("bert"))
    seen.attention["encoder.0"][:, :, 0, 1].sum().backward()
    assert model.encoder.layer[0].attention.self.query.weight.grad.abs().max() > 0


def test_long_texts_take_several_columns_at_a_time():
    """The identity is longer than a value is wide: the map is put together from pieces."""
    model = zoo.build("llama")
    batch = zoo.inputs("llama", length=30, padding=None)
    expected = eager_weights("llama", model, batch)["decoder"]
    with torch.no_grad(), capture(model) as seen:
        model(**batch)
    assert seen.attention["decoder.0"].shape == (3, 8, 30, 30)
    assert off_by(seen.attention["decoder.0"], expected[0]) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    model = zoo.build("llama").to(dtype)
    with torch.no_grad(), capture(model) as seen:
        model(**zoo.inputs("llama", padding=None))
    assert seen.attention["decoder.0"].dtype == dtype
    assert torch.allclose(seen.attention["decoder.0"].float().sum(-1), torch.ones(3, 8, 9), atol=0.03)
