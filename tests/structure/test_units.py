"""Neurons and sublayers by name: ranges, orders, what is refused, and models with hundreds of thousands of them."""

from __future__ import annotations

import time

import pytest
import torch
import transformers
from torch import nn

import zoo
from headcount import Head, HeadcountError, UnsupportedModel, anatomy, capture, masked, remove
from headcount.heads import format_units, parse_units
from headcount.structure import whole_anatomy
from oracle import off_by, run


@pytest.fixture(scope="module")
def bert():
    return zoo.build("bert")


def test_ranges_and_sublayers_stand_for_their_units(bert):
    found = anatomy(bert, ["heads", "neurons"])
    assert found.check("encoder_ffn.1.3-5, encoder.0") == (
        *(Head("encoder_ffn", 1, index) for index in (3, 4, 5)),
        *(Head("encoder", 0, index) for index in range(4)),
    )
    assert found.check(["encoder_ffn.2"]) == found.site("encoder_ffn.2").heads
    assert found.check(parse_units("encoder_ffn.0.0-1")) == found.check("encoder_ffn.0.0,encoder_ffn.0.1")
    assert found.index(Head("encoder_ffn", 0, 2)) == 12 + 2
    assert anatomy(bert, "sublayers").index("encoder_ffn.0") == 3
    assert repr(found) == "<12 heads and 144 neurons at 6 sites: encoder, encoder_ffn>"
    assert repr(found.site("encoder_ffn.0")) == "<encoder_ffn.0: 48 neurons, encoder.layer.0.output.dense>"


def test_what_is_written_is_read_again(bert):
    found = anatomy(bert, ["heads", "neurons"])
    heads = found.check("encoder_ffn.1.3-5,encoder_ffn.1.9,encoder.0,encoder_ffn.2,encoder.1.0")
    sizes = {site.name: len(site.kept) for site in found.sites}
    short = ["encoder_ffn.1.3-5", "encoder_ffn.1.9", "encoder.0", "encoder_ffn.2", "encoder.1.0"]
    assert format_units(heads, sizes) == short
    assert set(found.check(format_units(heads))) == set(heads)
    assert found.written(heads) == [*(f"encoder.0.{i}" for i in range(4)), "encoder.1.0", *short[:2], "encoder_ffn.2"]
    assert format_units([]) == []


@pytest.mark.parametrize(
    ("units", "says"),
    [
        ("encoder_ffn.0.48", r"encoder_ffn\.0\.48: .*neurons 0-47"),
        ("encoder_ffn.0.40-48", r"encoder_ffn\.0\.40-48: .*neurons 0-47"),
        ("encoder_ffn.0.0-999999", r"encoder_ffn\.0\.0-999999: .*neurons 0-47"),
        ("encoder.0.2-4", r"encoder\.0\.2-4: .*heads 0-3"),
        ("encoder_ffn.0.5-3", r"encoder_ffn\.0\.5-3 .*backwards.*encoder_ffn\.0\.3-5"),
        ("encoder_ffn.0.0-5,encoder_ffn.0.5-9", r"neuron encoder_ffn\.0\.5 .*twice"),
        ("encoder_ffn.0,encoder_ffn.0.7", r"neuron encoder_ffn\.0\.7 .*twice"),
        ("encoder.1.2,encoder.1", r"head encoder\.1\.2 .*twice"),
        ("encoder_ffn.3", r"sublayer encoder_ffn\.3: .*layers are 0-2"),
        ("decoder_ffn.0.1", r"no 'decoder_ffn' .*encoder, encoder_ffn"),
        ("cross.1", r"no 'cross' attention"),
        ("encoder_ffn.0.1-", r"'encoder_ffn\.0\.1-'.*kind\.layer\.index"),
    ],
)
def test_units_that_are_not_there(bert, units, says):
    for refuse in (whole_anatomy(bert).check, lambda units: remove(bert, units), lambda units: enter(bert, units)):
        with pytest.raises(HeadcountError, match=says) as refused:
            refuse(units)
        assert "\n" not in str(refused.value)


def enter(model, units):
    with masked(model, off=units):
        pass


def test_units_that_are_gone(bert):
    smaller = remove(bert, "encoder_ffn.0.0-9,encoder_ffn.1,encoder.2")
    found = whole_anatomy(smaller)
    assert anatomy(smaller, "sublayers").units == ("encoder.0", "encoder.1", "encoder_ffn.0", "encoder_ffn.2")
    assert [head.index for head in found.check("encoder_ffn.0")] == list(range(10, 48))
    for units, says in {
        "encoder_ffn.0.8-12": r"encoder_ffn\.0\.8 .*removed.* 10-47 left",
        "encoder_ffn.1": r"encoder_ffn\.1 has no neurons left",
        "encoder.2": r"encoder\.2 has no heads left",
    }.items():
        with pytest.raises(HeadcountError, match=says):
            remove(smaller, units)


def test_where_only_heads_are_taken(bert):
    with pytest.raises(HeadcountError, match=r"encoder_ffn\.0\.1\b.* neuron"):
        anatomy(bert).check("encoder_ffn.0.1")
    assert len(anatomy(bert).check("encoder.1")) == 4


@pytest.mark.parametrize(
    ("units", "says"),
    [("neuron", r"'neuron'.*'neurons'"), ([], "heads, neurons, sublayers"), (["heads", "rows"], "'rows'")],
)
def test_units_have_names(bert, units, says):
    with pytest.raises(HeadcountError, match=says):
        anatomy(bert, units)


def test_albert_names_a_shared_layer_by_its_first():
    found = anatomy(zoo.build("albert-groups"), "neurons")
    assert [(site.name, site.also_layers) for site in found.sites] == [("encoder_ffn.0", (1,)), ("encoder_ffn.2", (3,))]
    with pytest.raises(HeadcountError, match=r"layer 3 .* layer 2; name it encoder_ffn\.2\.4-6"):
        found.check("encoder_ffn.3.4-6")


class Expert(nn.Module):
    """A feed-forward layer with names of its own."""

    def __init__(self, mlp):
        super().__init__()
        self.first, self.second = mlp.fc1, mlp.fc2


def test_a_family_that_lacks_neurons_is_refused_by_name():
    """Heads are found and removed as before; neurons are refused, with what was seen."""
    model = zoo.build("vit")
    model.layers[1].mlp = Expert(model.layers[1].mlp)
    for refuse in (
        lambda: anatomy(model, "neurons"),
        lambda: anatomy(model, ["heads", "sublayers"]),
        lambda: remove(model, "encoder_ffn.0.1"),
        lambda: enter(model, "encoder_ffn.0"),
    ):
        with pytest.raises(HeadcountError, match=r"feed-forward layer of encoder\.1: it saw ViTLayer with .*mlp"):
            refuse()
    with pytest.raises(UnsupportedModel, match=r"CONTRIBUTING\.md"):
        anatomy(model, "neurons")
    assert len(anatomy(remove(model, "encoder.1.0")).heads) == 11


# ------------------------------------------------------------------------------------------------ masks and contexts


@pytest.mark.parametrize("name", ["bert", "opt", "gpt2", "t5"])  # OPT's feed-forward layers see no examples, only rows
def test_one_mask_for_each_example(name):
    model, batch = zoo.build(name), zoo.inputs(name, padding=None)
    units = ["heads", "neurons"]
    count = len(anatomy(model, units).units)
    xi = torch.rand(3, count, generator=torch.Generator().manual_seed(0))
    with masked(model, xi=xi, units=units):
        together = run(model, batch)
    for row in range(3):
        with masked(model, xi=xi[row], units=units):
            alone = run(model, {key: value[row : row + 1] for key, value in batch.items()})
        assert off_by(together[row : row + 1], alone) <= 1e-5
    assert off_by(together, run(model, batch)) > 1e-2


def test_the_gradient_of_neurons(bert):
    xi = torch.ones(144, requires_grad=True)
    with masked(bert, xi=xi, units="neurons"):
        bert(**zoo.inputs("bert")).last_hidden_state.pow(2).sum().backward()
    assert xi.grad is not None
    assert (xi.grad != 0).all()
    one = torch.ones((), requires_grad=True)
    with masked(bert, xi={"encoder_ffn.1": one}):  # one value for a whole sublayer
        bert(**zoo.inputs("bert")).last_hidden_state.pow(2).sum().backward()
    assert float(one.grad) == pytest.approx(float(xi.grad[48:96].sum()), rel=1e-3)


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ({"xi": torch.ones(144)}, r"\(144,\).*\[12\]"),
        ({"xi": torch.ones(12), "units": "neurons"}, r"\(12,\).*\[144\]"),
        ({"xi": torch.ones(6), "units": "sublayers"}, "sublayers"),
        ({"xi": {"encoder_ffn.0": 0.5, "encoder_ffn.0.3": 0.1}}, r"encoder_ffn\.0\.3 .*twice"),
    ],
)
def test_masks_of_neurons_that_cannot_be_read(bert, way, says):
    with pytest.raises(HeadcountError, match=says), masked(bert, **way):
        pass


@pytest.mark.parametrize("name", ["bert", "opt", "gpt2", "phi3"])
def test_contexts_are_what_the_projection_reads(name):
    model, batch = zoo.build(name), zoo.inputs(name)
    site = anatomy(model, "neurons").sites[1]
    seen: list[torch.Tensor] = []
    handle = site.output.register_forward_hook(lambda module, args, output: seen.append(output))
    with capture(model, units="neurons") as recorded:
        expected = run(model, batch)
    handle.remove()
    context = recorded.contexts[site]
    assert context.shape == (3, 9, len(site.kept), 1)
    again = site.output(context.squeeze(-1)).detach()
    assert off_by(again.reshape(seen[0].shape), seen[0]) <= 1e-5
    assert torch.equal(run(model, batch), expected)
    assert not recorded.attention.calls
    with capture(model, units="sublayers") as both:
        run(model, batch)
    assert set(both.contexts.calls) == set(anatomy(model, "sublayers").units)
    assert set(both.attention.calls) == {site.name for site in anatomy(model).sites}


# ------------------------------------------------------------------------------------------------------ large models


def test_hundreds_of_thousands_of_neurons_are_handled_at_once():
    """The layout of a model with 7 billion parameters: 352,256 neurons. Quadratic work would take minutes."""
    size = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008}
    with torch.device("meta"):
        model = transformers.LlamaModel(transformers.LlamaConfig(vocab_size=100, **size))
    started = time.monotonic()
    found = anatomy(model, ["heads", "neurons"])
    assert len(found.units) == 32 * 32 + 32 * 11008
    half = found.check([f"decoder_ffn.{layer}.0-5503" for layer in range(32)])
    assert format_units(half) == [f"decoder_ffn.{layer}.0-5503" for layer in range(32)]
    with masked(model, off=half):
        pass
    smaller = remove(model, half, inplace=True)
    assert {len(site.kept) for site in anatomy(smaller, "neurons").sites} == {5504}
    assert time.monotonic() - started < 30
