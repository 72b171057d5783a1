"""`masked`: values per head and example, gradients, nesting, and nothing left behind."""

from __future__ import annotations

import re

import pytest
import torch

import zoo
from headcount import Head, HeadcountError, anatomy, masked, remove
from oracle import hooks_of, off_by, run

SOME = ["bert", "albert", "deberta-v2", "mpnet", "gpt2", "opt", "bloom", "llama", "phi3", "marian", "t5", "whisper"]
SOME += ["vit", "clip"]


def ones(model, *rows):
    return torch.ones(*rows, len(anatomy(model).heads))


# ---------------------------------------------------------------------------------------------- ways to say it


def test_the_ways_to_name_heads_agree(bert, batch):
    whole = run(bert, batch)
    xi = ones(bert)
    xi[anatomy(bert).index(Head("encoder", 1, 2))] = 0
    with masked(bert, off=["encoder.1.2"]):
        expected = run(bert, batch)
    assert off_by(expected, whole) > 1e-3
    ways = [{"off": "encoder.1.2"}, {"off": Head("encoder", 1, 2)}, {"off": {Head("encoder", 1, 2)}}, {"xi": xi}]
    ways += [{"xi": {"encoder.1.2": 0.0}}, {"xi": {Head("encoder", 1, 2): torch.tensor(0)}}, {"xi": xi.bool()}]
    for way in ways:
        with masked(bert, **way):
            assert torch.equal(run(bert, batch), expected)
    assert torch.equal(run(bert, batch), whole)


def test_no_heads_and_ones_change_nothing(bert, batch):
    whole = run(bert, batch)
    for way in ({}, {"off": []}, {"off": ""}, {"xi": {}}, {"xi": {"encoder.0.0": 1.0}}, {"xi": ones(bert)}):
        with masked(bert, **way) as inside:
            assert inside is bert
            assert torch.equal(run(bert, batch), whole)


def test_values_in_a_dict_may_be_numbers_or_tensors_of_examples(bert, batch):
    per_example = torch.tensor([0.5, 1.0, -2.0], dtype=torch.float64)
    xi = ones(bert, 3)
    xi[:, 0], xi[:, 5] = per_example, 0.25
    with masked(bert, xi=xi):
        expected = run(bert, batch)
    with masked(bert, xi={"encoder.0.0": per_example, "encoder.1.1": 0.25}):
        assert torch.equal(run(bert, batch), expected)


@pytest.mark.parametrize("name", SOME)
def test_each_row_of_xi_is_that_example_masked_alone(name):
    model = zoo.build(name)
    batch = zoo.inputs(name, batch=4, padding="left" if zoo.ZOO[name].reads == "prompt" else "right")
    generator = torch.Generator().manual_seed(1)
    xi = torch.rand(4, len(anatomy(model).heads), generator=generator) * 2 - 0.5
    with masked(model, xi=xi):
        together = run(model, batch)
    assert off_by(together, run(model, batch)) > 1e-3
    for row in range(4):
        alone = {key: tensor[row : row + 1] for key, tensor in batch.items()}
        with masked(model, xi=xi[row]):
            assert off_by(run(model, alone), together[row : row + 1]) <= 1e-5


def test_linear_in_xi(bert):
    """One head's share of the output projection is scaled by its xi: M19 section 2.3."""
    site = anatomy(bert).site("encoder.0")
    seen = []
    handle = site.output.register_forward_hook(lambda module, args, output: seen.append(output))
    batch = zoo.inputs("bert", padding=None)
    try:
        for value in (0.0, 1.0, 3.0):
            with masked(bert, xi={"encoder.0.3": value}):
                run(bert, batch)
    finally:
        handle.remove()
    without, plain, triple = seen
    assert off_by(triple - without, 3 * (plain - without)) <= 1e-5


# ------------------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("name", ["bert", "gpt2", "marian"])  # Llama and T5 normalise in float32, whatever they are in
def test_gradients_are_those_of_finite_differences(name):
    model = zoo.build(name).double()
    batch = zoo.inputs(name, padding=None)
    xi = torch.rand(3, len(anatomy(model).heads), dtype=torch.float64, requires_grad=True)

    def loss(values):
        with masked(model, xi=values):
            return zoo.main_output(model(**batch)).square().sum()

    (gradient,) = torch.autograd.grad(loss(xi), xi)
    assert gradient.shape == xi.shape
    for row, head in ((0, 0), (1, 5), (2, xi.shape[1] - 1)):
        step = torch.zeros_like(xi)
        step[row, head] = 1e-5
        with torch.no_grad():
            slope = (loss(xi + step) - loss(xi - step)) / 2e-5
        assert torch.isclose(gradient[row, head], slope, rtol=1e-5, atol=1e-7)


def test_gradients_through_a_dict_keep_their_precision(bert):
    model = zoo.build("bert").double()
    gate = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    with masked(model, xi={"encoder.0.0": gate}):
        zoo.main_output(model(**zoo.inputs("bert"))).square().sum().backward()
    assert gate.grad is not None
    assert gate.grad.abs() > 0
    with masked(model, xi={"encoder.0.0": 0.3}):
        rounded = run(model, zoo.inputs("bert"))
    with masked(model, xi={"encoder.0.0": gate.detach()}):
        assert off_by(run(model, zoo.inputs("bert")), rounded) <= 1e-6


def test_parameters_still_get_gradients_and_masked_heads_none(bert, batch):
    model = zoo.build("bert")
    with masked(model, off="encoder.0.0"):
        zoo.main_output(model(**zoo.inputs("bert"))).square().sum().backward()
    weight = model.encoder.layer[0].attention.self.value.weight.grad
    assert weight[:6].abs().max() == 0
    assert weight[6:].abs().max() > 0


# --------------------------------------------------------------------------------------------- nesting and restoring


def test_masks_nest_and_multiply(bert, batch):
    with masked(bert, xi={"encoder.0.0": 0.25, "encoder.2.1": 0.0}):
        expected = run(bert, batch)
    with masked(bert, off="encoder.2.1"):
        outer = run(bert, batch)
        with masked(bert, xi={"encoder.0.0": 0.5}), masked(bert, xi={"encoder.0.0": 0.5}):
            assert off_by(run(bert, batch), expected) <= 1e-6
        assert torch.equal(run(bert, batch), outer)


def test_restored_after_an_error_inside_the_model(bert):
    before = hooks_of(bert)
    with pytest.raises(HeadcountError, match=r"2 rows.* batch of 3"), masked(bert, xi=ones(bert, 2)):
        run(bert, zoo.inputs("bert", batch=3, model=bert))
    assert hooks_of(bert) == before


def test_refused_masks_leave_no_hooks(bert):
    before = hooks_of(bert)
    with pytest.raises(HeadcountError), masked(bert, off=["encoder.0.0", "encoder.9.0"]):
        pass
    assert hooks_of(bert) == before


def test_weights_and_settings_are_not_touched(bert, batch):
    before = {key: tensor.clone() for key, tensor in bert.state_dict().items()}
    with masked(bert, off=[str(head) for head in anatomy(bert).heads]):
        run(bert, batch)
        assert not bert.training
    assert all(torch.equal(before[key], tensor) for key, tensor in bert.state_dict().items())


# ---------------------------------------------------------------------------------------------- where it has to work


def test_inference_mode(bert, batch):
    with masked(bert, xi=ones(bert) / 2):
        expected = run(bert, batch)
        with torch.inference_mode():
            assert torch.equal(bert(**batch).logits, expected)
    with torch.inference_mode(), masked(bert, xi=ones(bert) / 2):
        assert torch.equal(bert(**batch).logits, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["bert", "llama", "t5", "bloom"])
def test_half_precision(name, dtype):
    heads = [str(head) for head in anatomy(zoo.build(name)).heads][::2]
    model = zoo.build(name).to(dtype)
    batch = zoo.inputs(name)
    with masked(zoo.build(name), off=heads):
        expected = run(zoo.build(name), batch)
    assert expected.dtype == torch.float32
    with masked(model, off=heads):
        found = run(model, batch)
    smaller = remove(model, heads)
    assert found.dtype == run(smaller, batch).dtype == dtype
    assert off_by(found.float(), run(smaller, batch).float()) <= 0.05
    per_example = torch.ones(3, len(anatomy(model).heads))
    per_example[:, ::2] = 0
    with masked(model, xi=per_example):
        assert torch.equal(run(model, batch), found)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bloom", "marian", "t5", "whisper"])
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_with_a_mask_of_its_own_for_each_example(name, beams):
    """Rows of xi are repeated along with the beams."""
    model = zoo.build_generator(name)
    heads = anatomy(model).heads
    xi = torch.ones(3, len(heads))
    for row in range(3):
        xi[row, row::3] = 0
    with masked(model, xi=xi):
        together = zoo.generate(model, name, beams=beams, new_tokens=5, min_new_tokens=5)
    for row in range(3):
        with masked(model, xi=xi[row]):
            alone = zoo.generate(model, name, beams=beams, new_tokens=5, min_new_tokens=5)
        assert torch.equal(together[row], alone[row])
    assert len({tuple(row.tolist()) for row in together}) == 3


def test_the_mask_of_a_pruned_model_counts_the_heads_that_are_left(bert, batch):
    smaller = remove(bert, ["encoder.0.0", "encoder.0.1", "encoder.1.0", "encoder.1.1", "encoder.1.2", "encoder.1.3"])
    assert len(anatomy(smaller).heads) == 6
    nothing_left = remove(smaller, anatomy(smaller).heads)
    whole = run(nothing_left, batch)
    with masked(smaller, xi=torch.zeros(6)):
        assert off_by(run(smaller, batch), whole) <= 1e-5
    for way in ({"off": []}, {"xi": torch.ones(0)}, {"xi": {}}):
        with masked(nothing_left, **way):
            assert torch.equal(run(nothing_left, batch), whole)


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("shape", [(), (11,), (13,), (2, 11), (1, 2, 12), (0,), (0, 12)])
def test_tensors_of_a_wrong_shape(bert, shape):
    says = rf"shape {re.escape(str(shape))}.*\[12\] or \[examples, 12\]"
    with pytest.raises(HeadcountError, match=says), masked(bert, xi=torch.ones(shape)):
        pass


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ({"off": "encoder.0.0", "xi": {"encoder.0.0": 1.0}}, "either off=… or xi=…"),
        ({"xi": {"decoder.0.0": 0.5}}, "no 'decoder'.* encoder"),
        ({"xi": {"encoder.0.0": 0.5, Head("encoder", 0, 0): 0.1}}, "encoder.0.0 .*twice"),
        ({"xi": {"encoder.0.0": torch.ones(2, 2)}}, r"tensor \[examples\]"),
        ({"xi": [0.5] * 12}, r"list.*\{head: value\}"),
    ],
)
def test_masks_that_cannot_be_read(bert, way, says):
    with pytest.raises(HeadcountError, match=says), masked(bert, **way):
        pass


def test_more_examples_than_the_batch_has(bert, batch):
    says = r"5 rows.*encoder\.0 .*batch of 3"
    with pytest.raises(HeadcountError, match=says), masked(bert, xi=ones(bert, 5)):
        run(bert, batch)
