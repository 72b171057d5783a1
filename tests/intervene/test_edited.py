"""`edited`: against hooks written out by hand, for every family and kernel, at single positions and with a cache."""

from __future__ import annotations

import contextlib
import inspect
import re

import pytest
import torch

import zoo
from headcount import Head, HeadcountError, Replace, Scale, anatomy, capture, edited, masked, remove
from oracle import all_heads, hooks_of, neuron_places, off_by, places, run

TOLERANCE = 1e-5
KERNELS = [(name, kernel) for name in zoo.FAMILIES for kernel in zoo.kernels(name)]
GENERATORS = [name for name in zoo.FAMILIES if zoo.generates(name)]


def randoms(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def one_of_each(where):
    """The second unit of the first and of the last site of every kind."""
    sites = list(where)
    ends = {site.split(".")[0]: site for site in sites} | {f"{site.split('.')[0]} first": site for site in sites[::-1]}
    return [f"{site}.1" for site in dict.fromkeys(ends.values())]


@contextlib.contextmanager
def by_hand(model, name, changes, batch_shape=None):
    """Hooks as somebody would write them: `changes[unit]` maps the unit's own columns, (B, T, width), to others."""
    where = {**places(model, name), **neuron_places(model, name)}
    handles = []

    def hook(unit, change):
        site, _, index = unit.rpartition(".")
        place = where[site]
        columns = slice(int(index) * place.head_dim, (int(index) + 1) * place.head_dim)

        def before(module, args):
            context = args[0].clone()
            flat = context.ndim == 2  # OPT's feed-forward layers
            own = context[..., columns].unflatten(0, batch_shape) if flat else context[..., columns]
            new = change(own)
            context[..., columns] = new.flatten(0, 1) if flat else new
            return (context, *args[1:])

        return model.get_submodule(place.output).register_forward_pre_hook(before)

    try:
        handles.extend(hook(unit, change) for unit, change in changes.items())
        yield
    finally:
        for handle in handles:
            handle.remove()


def width_of(model, unit):
    return anatomy(model, ["heads", "neurons"]).site(Head.parse(unit)).width


# ----------------------------------------------------------------------------------------- every family and kernel


@pytest.mark.parametrize(("name", "attn"), KERNELS)
def test_scaling_by_zero_is_a_mask(name, attn):
    model = zoo.build(name, attn=attn)
    units = [*one_of_each(places(model, name)), *one_of_each(neuron_places(model, name))]
    for side in ("left", "right"):
        batch = zoo.inputs(name, padding=side)
        with masked(model, off=units):
            expected = run(model, batch)
        assert off_by(expected, run(model, batch)) > 1e-4
        with edited(model, dict.fromkeys(units, Scale(0))):
            assert torch.equal(run(model, batch), expected)
        with edited(model, {unit: Replace(torch.zeros(width_of(model, unit))) for unit in units}):
            assert off_by(run(model, batch), expected) <= TOLERANCE


@pytest.mark.parametrize(("name", "attn"), KERNELS)
def test_every_edit_is_what_a_hook_by_hand_does(name, attn):
    """Added, replaced, scaled and passed through a function, each at positions of its own."""
    model = zoo.build(name, attn=attn)
    units = [*one_of_each(places(model, name)), *one_of_each(neuron_places(model, name))]
    for side in ("left", "right"):
        batch = zoo.inputs(name, padding=side)
        for positions in (None, [0, -2], slice(1, -1)):
            chosen = slice(None) if positions is None else positions
            changes, edits = {}, {}
            for place, unit in enumerate(units):
                vector = randoms(width_of(model, unit), seed=place)
                edit, change = [
                    (vector, lambda own, vector=vector: own + vector),
                    (Replace(vector), lambda own, vector=vector: vector.expand_as(own)),
                    (Scale(-0.5), lambda own: own * -0.5),
                    (torch.sin, torch.sin),
                ][place % 4]
                edits[unit], changes[unit] = edit, at(chosen, change)
            text = batch.get("decoder_input_ids", batch.get("input_ids"))
            with by_hand(model, name, changes, None if text is None else text.shape):
                expected = run(model, batch)
            with edited(model, edits, positions=positions):
                found = run(model, batch)
            assert off_by(found, expected) <= TOLERANCE
            assert off_by(found, run(model, batch)) > 1e-4


def at(chosen, change):
    def changed(own):
        new = own.clone()
        new[:, chosen] = change(own[:, chosen])
        return new

    return changed


@pytest.mark.parametrize(("name", "attn"), KERNELS)
def test_an_added_vector_is_added_through_the_projection(name, attn):
    """The site puts out `W_o[:, head] v` more, and nothing else changes."""
    model = zoo.build(name, attn=attn)
    for head in one_of_each(places(model, name)):
        site, _, index = head.rpartition(".")
        place = places(model, name)[site]
        vector = randoms(place.head_dim)
        output = model.get_submodule(place.output)
        weight = output.weight.T if type(output).__name__ == "Conv1D" else output.weight
        more = weight[:, int(index) * place.head_dim : (int(index) + 1) * place.head_dim] @ vector
        handle = output.register_forward_hook(lambda module, args, projected, more=more: projected + more)
        try:
            expected = run(model, zoo.inputs(name))
        finally:
            handle.remove()
        with edited(model, {head: vector}):
            assert off_by(run(model, zoo.inputs(name)), expected) <= TOLERANCE


@pytest.mark.parametrize(("name", "attn"), KERNELS)
def test_another_runs_outputs_make_its_contribution(name, attn):
    """A head whose output is replaced contributes what it contributed in the other run, to the last site that ran."""
    model = zoo.build(name, attn=attn)
    one, other = zoo.inputs(name, padding=None, seed=1), zoo.inputs(name, padding=None, seed=2)
    head = one_of_each(places(model, name))[-1]
    site, _, index = head.rpartition(".")
    place = places(model, name)[site]
    columns = slice(int(index) * place.head_dim, (int(index) + 1) * place.head_dim)
    output = model.get_submodule(place.output)
    weight = output.weight if type(output).__name__ == "Conv1D" else output.weight.T  # (heads * head_dim, hidden)
    seen = []
    handle = output.register_forward_hook(lambda module, args, projected: seen.append((args[0], projected)))
    try:
        with torch.no_grad(), capture(model) as patch:
            model(**other)
        contexts = patch.contexts.calls[site][0]  # ALBERT runs a site several times
        assert torch.equal(contexts[:, :, int(index)], seen[0][0][..., columns])
        seen.clear()
        run(model, one)
        (context, projected) = seen[0]
        seen.clear()
        with edited(model, {head: Replace(contexts[:, :, int(index)])}):
            run(model, one)
    finally:
        handle.remove()
    with torch.no_grad():
        swapped = (contexts[:, :, int(index)] - context[..., columns]) @ weight[columns]
    assert off_by(seen[0][1], projected + swapped) <= TOLERANCE
    assert off_by(seen[0][1], projected) > 1e-3


# ------------------------------------------------------------------------------------------------ while generating


@pytest.mark.parametrize("name", GENERATORS)
@pytest.mark.parametrize("positions", [slice(1, None), slice(10, None), [2, 10], 10, "mask"])
def test_a_position_is_the_same_token_with_and_without_a_cache(name, positions):
    model = zoo.build_generator(name)
    start = 9 if zoo.ZOO[name].reads == "prompt" else 1
    if positions == "mask":
        positions = torch.rand(3, start + 4, generator=torch.Generator().manual_seed(0)) < 0.5
    elif start == 1:
        positions = {"slice(10, None, None)": slice(2, None), "[2, 10]": [0, 3], "10": 2}.get(str(positions), positions)
    kinds = ("decoder", "cross")
    heads = [head for head in one_of_each(places(model, name)) if head.split(".")[0] in kinds]
    units = [*heads, *(unit for unit in one_of_each(neuron_places(model, name)) if unit.startswith("decoder"))]
    edits = {unit: 3 * randoms(width_of(model, unit), seed=place) for place, unit in enumerate(units)}
    settings = {"return_dict_in_generate": True, "output_logits": True, "new_tokens": 5, "min_new_tokens": 5}
    plain = zoo.generate(model, name, **settings)
    with edited(model, edits, positions=positions):
        cached = zoo.generate(model, name, **settings)
    results = []
    for step in range(5):  # without a cache, every step is a sequence of its own, in which some positions are not yet
        length = start + step
        here = within(positions, length)
        with edited(model, edits, positions=here):
            logits = whole_forward(model, name, cached.sequences[:, :length])
        results.append(off_by(logits, cached.logits[step]))
    assert max(results) <= TOLERANCE
    assert max(off_by(one, two) for one, two in zip(plain.logits, cached.logits, strict=True)) > 1e-3


def within(positions, length):
    """What there is of the positions in a sequence of that length."""
    if isinstance(positions, slice):
        return slice(min(positions.start, length), None) if positions.start < length else []
    if torch.is_tensor(positions):
        wide = torch.nn.functional.pad(positions, (0, max(0, length - positions.shape[1])))
        return wide[:, :length]
    return [at for at in ([positions] if isinstance(positions, int) else positions) if at < length]


def whole_forward(model, name, sequences):
    """The logits after the last token of sequences, read at once."""
    prompt = zoo.prompt(name)
    with torch.no_grad():
        if zoo.ZOO[name].reads != "prompt":
            return model(**prompt, decoder_input_ids=sequences, use_cache=False).logits[:, -1]
        mask = torch.nn.functional.pad(prompt["attention_mask"], (0, sequences.shape[1] - 9), value=1)
        counted = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)}  # as `generate` counts them
        counted = counted if "position_ids" in inspect.signature(model.forward).parameters else {}
        return model(sequences, attention_mask=mask, use_cache=False, **counted).logits[:, -1]


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral-sliding", "bloom", "marian", "t5", "whisper"])
def test_the_last_position_is_the_newest_token_of_every_step(name):
    """Inference-time intervention: a vector is added at the last token of the prompt and at every token after it."""
    model = zoo.build_generator(name)
    site = next(site for site in places(model, name) if site.startswith("decoder"))
    vector = 3 * randoms(places(model, name)[site].head_dim)
    settings = {"return_dict_in_generate": True, "output_logits": True, "new_tokens": 4, "min_new_tokens": 4}
    with by_hand(model, name, {f"{site}.1": at([-1], lambda own: own + vector)}):
        expected = zoo.generate(model, name, **settings)
    for positions in (-1, slice(-1, None)):
        with edited(model, {f"{site}.1": vector}, positions=positions):
            found = zoo.generate(model, name, **settings)
        assert all(torch.equal(one, two) for one, two in zip(found.logits, expected.logits, strict=True))


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", ["gpt2", "llama", "opt", "marian", "t5"])
def test_each_example_has_its_own_edit_and_its_beams_too(name, beams):
    model = zoo.build_generator(name)
    site = list(places(model, name))[-1]
    vectors = 4 * randoms(3, 1, places(model, name)[site].head_dim)
    neuron = f"{list(neuron_places(model, name))[-1]}.0"
    edits = {f"{site}.0": vectors, f"{site}.1": Replace(vectors), neuron: vectors[..., :1]}
    settings = {"beams": beams, "new_tokens": 5, "min_new_tokens": 5}
    with edited(model, edits):
        together = zoo.generate(model, name, **settings)
    assert not torch.equal(together, zoo.generate(model, name, **settings))
    for row in range(3):
        alone = {f"{site}.0": vectors[row], f"{site}.1": Replace(vectors[row]), neuron: vectors[row, :, :1]}
        with edited(model, alone):
            assert torch.equal(zoo.generate(model, name, **settings)[row], together[row])


def test_edits_of_the_prompt_end_with_it():
    """A tensor of the prompt alone needs positions to say so; a mask of the prompt says so itself."""
    model = zoo.build_generator("llama")
    values = randoms(3, 9, 4)
    mask = torch.ones(3, 9, dtype=torch.bool)
    with edited(model, {"decoder.1.2": Replace(values)}, positions=slice(0, 9)):
        expected = zoo.generate(model, "llama")
    with edited(model, {"decoder.1.2": Replace(values)}, positions=mask):
        assert torch.equal(zoo.generate(model, "llama"), expected)
    says = r"decoder\.1\.2.* 9 positions.*decoder\.1 .*10.*positions="
    with pytest.raises(HeadcountError, match=says), edited(model, {"decoder.1.2": Replace(values)}):
        zoo.generate(model, "llama")


# ------------------------------------------------------------------------------------------------- ways to say it


def test_positions_can_be_said_in_many_ways(bert, batch):
    edits = {"encoder.0.0": randoms(6), "encoder.2.3": Scale(2.0), "encoder_ffn.1.4": torch.tensor(1.5)}
    mask = torch.zeros(3, 9, dtype=torch.bool)
    mask[:, [2, 8]] = True
    with edited(bert, edits, positions=mask):
        expected = run(bert, batch)
    assert off_by(expected, run(bert, batch)) > 1e-3
    ways = [[2, 8], (2, -1), [-7, 8], torch.tensor([2, 8]), range(2, 9, 6), slice(2, None, 6), mask[:1], mask.numpy()]
    for way in ways:
        with edited(bert, edits, positions=way) as inside:
            assert inside is bert
            assert torch.equal(run(bert, batch), expected)
    with edited(bert, edits, positions=[]):
        assert torch.equal(run(bert, batch), run(bert, batch))


def test_a_mask_chooses_positions_of_every_example(bert, batch):
    mask = torch.rand(3, 9, generator=torch.Generator().manual_seed(3)) < 0.4
    values = randoms(3, 9, 6)
    with edited(bert, {"encoder.1.1": Replace(values)}, positions=mask):
        found = run(bert, batch)
    with by_hand(bert, "bert", {"encoder.1.1": lambda own: torch.where(mask[..., None], values, own)}):
        assert torch.equal(run(bert, batch), found)


def test_units_named_together_get_the_same_edit(bert, batch):
    seen = []

    def halve(outputs):
        seen.append(tuple(outputs.shape))
        return outputs / 2

    with masked(bert, xi={"encoder.1": 0.5, "encoder_ffn.0.3-9": 0.5, "encoder.0.1": 0.5}):
        expected = run(bert, batch)
    with edited(bert, {"encoder.1": halve, "encoder_ffn.0.3-9": halve, Head("encoder", 0, 1): halve}):
        assert torch.equal(run(bert, batch), expected)
    assert seen == [(3, 9, 6), (3, 9, 7, 1), (3, 9, 4, 6)]
    with edited(bert, {"encoder.1": Scale(0.5), "encoder_ffn.0.3-9": Scale(0.5), "encoder.0.1": Scale(0.5)}):
        assert torch.equal(run(bert, batch), expected)


def test_whole_sites_take_what_capture_recorded(bert, batch):
    other = zoo.inputs("bert", model=bert, seed=7)
    with torch.no_grad(), capture(bert, attention=False, units="sublayers") as seen:
        bert(**other)
    last = "encoder.2", "encoder_ffn.2"
    with edited(bert, {site: Replace(seen.contexts[site]) for site in last}):
        swapped = run(bert, batch)
    with edited(bert, {f"{site}.{unit}": Replace(seen.contexts[site][:, :, unit])
                       for site in last for unit in range(seen.contexts[site].shape[2])}):  # fmt: skip
        assert torch.equal(run(bert, batch), swapped)
    assert off_by(swapped, run(bert, batch)) > 1e-3
    every = {site: Replace(tensors[0]) for site, tensors in seen.contexts.calls.items()}
    with edited(bert, every), torch.no_grad(), capture(bert, attention=False, units="sublayers") as patched:
        bert(**batch)
    assert all(torch.equal(patched.contexts[site], seen.contexts[site]) for site in every)


def test_a_tensor_of_positions_is_the_same_for_every_example(bert, batch):
    values = randoms(9, 6)
    with edited(bert, {"encoder.0.2": Replace(values)}):
        expected = run(bert, batch)
    with edited(bert, {"encoder.0.2": Replace(values.expand(3, 9, 6))}):
        assert torch.equal(run(bert, batch), expected)
    with edited(bert, {"encoder.0.2": Replace(values[:, :1].expand(9, 6))}):
        assert off_by(run(bert, batch), expected) > 1e-3


def test_scales_may_differ_between_examples(bert, batch):
    scales = torch.tensor([0.5, 1.0, -2.0], dtype=torch.float64)
    with masked(bert, xi={"encoder.0.0": scales}):
        expected = run(bert, batch)
    with edited(bert, {"encoder.0.0": Scale(scales)}):
        assert torch.equal(run(bert, batch), expected)


def test_blocks_nest_and_the_outer_edit_is_made_first(bert, batch):
    vector = randoms(6)
    with edited(bert, {"encoder.0.0": lambda own: (own + vector) * 3}):
        expected = run(bert, batch)
    with edited(bert, {"encoder.0.0": vector}), masked(bert, xi={"encoder.0.0": 3.0}):
        assert off_by(run(bert, batch), expected) <= 1e-6
    with masked(bert, xi={"encoder.0.0": 3.0}), edited(bert, {"encoder.0.0": vector}):
        assert off_by(run(bert, batch), expected) > 1e-3


def test_what_capture_sees_inside_has_been_edited(bert, batch):
    with edited(bert, {"encoder.1.2": Replace(torch.ones(6))}), capture(bert) as seen, torch.no_grad():
        bert(**batch)
    assert bool((seen.contexts["encoder.1"][:, :, 2] == 1).all())
    assert not bool((seen.contexts["encoder.1"][:, :, 1] == 1).any())


def test_heads_keep_their_names_in_a_pruned_model(bert, batch):
    smaller = remove(bert, ["encoder.1.0", "encoder.1.2"])
    with edited(bert, {"encoder.1.3": torch.ones(6)}), masked(bert, off="encoder.1.0,encoder.1.2"):
        expected = run(bert, batch)
    with edited(smaller, {"encoder.1.3": torch.ones(6)}):
        assert off_by(run(smaller, batch), expected) <= TOLERANCE
    with pytest.raises(HeadcountError, match=r"encoder\.1\.0.*1, 3"), edited(smaller, {"encoder.1.0": Scale(2)}):
        pass


# ------------------------------------------------------------------------------------------- gradients, precision


@pytest.mark.parametrize("name", ["bert", "gpt2", "opt", "marian"])
def test_gradients_are_those_of_finite_differences(name):
    model = zoo.build(name).double()
    batch = zoo.inputs(name, padding=None)
    first, last = one_of_each(places(model, name))[0], one_of_each(places(model, name))[-1]
    neuron = one_of_each(neuron_places(model, name))[-1]
    leaves = [randoms(6).double(), randoms(3, 1, 6).double(), torch.tensor(0.7).double(), randoms(1).double()]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    others = [head for head in all_heads(places(model, name)) if head not in (first, last)]

    def loss(added, put, scale, width):
        edits = {first: added, last: Replace(put), others[0]: Scale(scale), neuron: lambda own: own * width}
        with edited(model, edits, positions=[0, -2]):
            return zoo.main_output(model(**batch)).square().sum()

    gradients = torch.autograd.grad(loss(*leaves), leaves)
    for place, (leaf, gradient) in enumerate(zip(leaves, gradients, strict=True)):
        step = torch.zeros_like(leaf)
        step.view(-1)[0] = 1e-5
        with torch.no_grad():
            more, less = ([*leaves[:place], leaf + sign * step, *leaves[place + 1 :]] for sign in (1, -1))
            slope = (loss(*more) - loss(*less)) / 2e-5
        assert torch.isclose(gradient.reshape(-1)[0], slope, rtol=1e-5, atol=1e-7)
        assert gradient.abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_inference_mode(dtype):
    model = zoo.build("llama").to(dtype)
    with torch.inference_mode(), edited(model, {"decoder.0.1": torch.ones(4), "decoder.2.1": Replace(torch.ones(4))}):
        found = run(model, zoo.inputs("llama"))
    assert found.dtype == dtype
    whole = zoo.build("llama")
    with edited(whole, {"decoder.0.1": torch.ones(4), "decoder.2.1": Replace(torch.ones(4))}):
        assert off_by(found.float(), run(whole, zoo.inputs("llama"))) <= 0.1


# ----------------------------------------------------------------------------------------------- nothing left behind


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("way", ["edited", "masked"])
def test_restored_after(way, error, bert, batch):
    before, whole = hooks_of(bert), run(bert, batch)
    edits = {"encoder.0.0": torch.ones(6), "encoder_ffn.0": Scale(2)}

    def fail():
        with edited(bert, edits, positions=[0]) if way == "edited" else masked(bert, off="encoder.0.0"):
            assert hooks_of(bert) != before
            raise error

    with pytest.raises(error):
        fail()
    assert hooks_of(bert) == before
    assert torch.equal(run(bert, batch), whole)


def failing(own):
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("edits", "positions", "says"),
    [
        # refused before anything runs
        ({"encoder.0.0": torch.ones(5)}, None, r"encoder\.0\.0 .*\(5,\).*\(6,\)"),
        ({"encoder.0.0": torch.tensor(1.0)}, None, r"encoder\.0\.0 .*\(\).*\(6,\)"),
        ({"encoder.0.0": Replace(torch.ones(3, 9, 4, 6))}, None, r"\(3, 9, 4, 6\).*\(B, T, 6\)"),
        ({"encoder.0": Replace(torch.ones(3, 9, 3, 6))}, None, r"\(3, 9, 3, 6\).*\(B, T, 4, 6\)"),
        ({"encoder.0.0": torch.ones(1, 1, 1, 1, 6)}, None, r"\(1, 1, 1, 1, 6\).*\(6,\)"),
        ({"encoder_ffn.0.0": torch.ones(2)}, None, r"encoder_ffn\.0\.0 .*\(2,\).*\(1,\)"),
        ({"encoder.0.0": 2.0}, None, r"encoder\.0\.0 .*2\.0.*Scale"),
        ({"encoder.0.0": Replace([1.0])}, None, r"encoder\.0\.0 .*\[1\.0\].*Replace\(tensor\)"),
        ({"encoder.0.0": Scale("x")}, None, r"Scale .*number"),
        ({"encoder.0.0": Scale(torch.ones(2, 2))}, None, r"Scale .*\[examples\]"),
        ({"encoder.0.9": Scale(0)}, None, r"encoder\.0\.9.*0-3"),
        ({"encoder.0": Scale(0), "encoder.0.1": Scale(0)}, None, r"encoder\.0\.1 .*twice"),
        ([("encoder.0.0", Scale(0))], None, r"list.*\{head: edit\}"),
        ({"encoder.0.0": Scale(0)}, 1.5, r"1\.5.*positions="),
        ({"encoder.0.0": Scale(0)}, True, r"True.*positions="),
        ({"encoder.0.0": Scale(0)}, "first", r"first.*positions="),
        ({"encoder.0.0": Scale(0)}, torch.ones(9, dtype=torch.bool), r"positions=.*\[examples, positions\]"),
        # refused when the batch shows that it cannot be
        ({"encoder.0.0": Scale(0)}, 9, r"no position 9: encoder\.0 .*9.*positions="),
        ({"encoder.0.0": Scale(0)}, [0, -10], r"no position -10: encoder\.0 .*9"),
        ({"encoder.0.0": Scale(0)}, slice(9, None), r"no position 9: encoder\.0 .*9"),
        ({"encoder.0.0": Scale(0)}, torch.ones(3, 8, dtype=torch.bool), r"8 columns.*encoder\.0 .*9"),
        ({"encoder.0.0": Scale(0)}, torch.ones(2, 9, dtype=torch.bool), r"2 rows.*encoder\.0 .*batch of 3"),
        ({"encoder.0.0": torch.ones(8, 6)}, None, r"encoder\.0\.0 has 8 positions.*encoder\.0 .*9"),
        ({"encoder.0.0": torch.ones(2, 9, 6)}, None, r"2 rows.*encoder\.0 .*batch of 3"),
        ({"encoder.0.0": lambda own: own[..., 0]}, None, r"encoder\.0\.0 .*\(3, 9\).*\(3, 9, 6\)"),
        ({"encoder.0.0": lambda own: None}, None, r"encoder\.0\.0 .*NoneType.*\(3, 9, 6\)"),
    ],
)
def test_edits_that_cannot_be_made_leave_nothing_behind(bert, batch, edits, positions, says):
    before, whole = hooks_of(bert), run(bert, batch)
    with pytest.raises(HeadcountError, match=says), edited(bert, edits, positions=positions):
        run(bert, batch)
    assert hooks_of(bert) == before
    assert torch.equal(run(bert, batch), whole)


def test_errors_of_a_function_pass_through_and_leave_nothing_behind(bert, batch):
    before = hooks_of(bert)
    with pytest.raises(ZeroDivisionError), edited(bert, {"encoder.0.0": failing}, positions=0):
        run(bert, batch)
    assert hooks_of(bert) == before


@pytest.mark.parametrize(
    ("positions", "last"), [(9, 9), ([0, 30], 30), (slice(12, None), 12), (torch.ones(3, 12, dtype=torch.bool), 11)]
)
def test_positions_that_a_model_with_a_cache_never_reached(positions, last):
    """A decoder with a cache may still come to a position, so it is refused when the block ends."""
    model = zoo.build("llama")
    before = hooks_of(model)
    says = rf"position {last}.*decoder\.0 .*9"
    with pytest.raises(HeadcountError, match=says), edited(model, {"decoder.0.1": Scale(0)}, positions=positions):
        run(model, zoo.inputs("llama"))
    assert hooks_of(model) == before


def test_a_tensor_longer_than_the_text_of_a_model_with_a_cache():
    model = zoo.build("llama")
    longer = re.compile(r"decoder\.0\.1 .*position 10.*decoder\.0 .*9")
    with pytest.raises(HeadcountError, match=longer), edited(model, {"decoder.0.1": torch.ones(11, 4)}):
        run(model, zoo.inputs("llama"))
    with edited(model, {"decoder.0.1": torch.ones(11, 4)}):
        pass  # nothing ran, so nothing is wrong
    assert not any(hooks_of(model).values())
