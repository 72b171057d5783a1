"""The gradient method against a slow loop written from the other side of M19's equation."""

import tracemalloc
import weakref

import numpy as np
import pytest
import torch

import headcount.scoring.gradient as gradient_module
import tiny_models
import zoo
from headcount import masked, remove
from headcount.errors import BadData, HeadcountError
from headcount.scoring import head_gradients, unit_moments
from headcount.scoring.gradient import fisher, gradient
from headcount.structure import anatomy
from toy_jobs import JOBS, classification
from zoo_tasks import ZooTask


def keep_context(kept, name):
    def hook(module, args):
        args[0].retain_grad()
        kept.setdefault(name, []).append(args[0])

    return hook


def slow_gradients(model, task, units="heads"):
    """Att_h(x)^T dL(x)/dAtt_h(x) (M19 eq. 2, right side), one example and one backward pass at a time: (N, units)"""
    rows = []
    for index in range(len(task)):
        batch = task.batch([index])
        kept = {}
        sites = [site for site in anatomy(model, units).sites if site.kept]
        handles = [site.output.register_forward_pre_hook(keep_context(kept, site.name)) for site in sites]
        task.losses(task.outputs(model, batch), batch).sum().backward()
        for handle in handles:
            handle.remove()
        row = []
        for site in sites:
            shape = (-1, len(site.kept), site.width)
            row.append(sum((c.detach() * c.grad).reshape(shape).sum((0, 2)) for c in kept[site.name]))
        rows.append(torch.cat(row))
        model.zero_grad()
    return torch.stack(rows).detach().numpy()


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_equals_a_loop_over_single_examples_in_every_family(name):
    model = ZooTask.model(name)
    task = ZooTask(name, model, n=4)
    signed = head_gradients(model, task)
    assert np.abs(signed).max() > 1e-4
    np.testing.assert_allclose(signed, slow_gradients(model, task), atol=1e-5)


def assert_moments(moments, rows):
    """Whether moments are those of the rows (N, units)."""
    assert moments.examples == len(rows)
    assert moments.mean.dtype == np.float64
    np.testing.assert_allclose(moments.mean, rows.mean(0), atol=1e-5)
    np.testing.assert_allclose(moments.absolute, np.abs(rows).mean(0), atol=1e-5)
    np.testing.assert_allclose(moments.squares, (rows**2).mean(0), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", zoo.FAMILIES)
def test_moments_of_heads_neurons_and_sublayers_in_every_family(name):
    model = ZooTask.model(name)
    task = ZooTask(name, model, n=4)
    rows = slow_gradients(model, task, ["heads", "neurons"])
    fine, whole = anatomy(model, ["heads", "neurons"]), anatomy(model, "sublayers").units
    assert np.abs(rows[:, [unit.is_neuron for unit in fine.units]]).max() > 1e-4
    at = np.array([[unit.site == site for unit in fine.units] for site in whole])  # (sublayers, units)
    moments = unit_moments(model, task, ["heads", "neurons", "sublayers"], tokens=20)  # two batches
    assert moments.units == (*fine.units, *whole)
    assert_moments(moments, np.concatenate([rows, rows @ at.T], axis=1))
    assert_moments(unit_moments(model, task, "sublayers"), rows @ at.T)


# Plain, shared, fused qkv and Conv1D, (B * T, n), gated, fused gate and up, encoder and decoder.
@pytest.mark.parametrize("name", ["bert", "albert", "gpt2", "opt", "llama", "phi3", "marian"])
def test_moments_equal_finite_differences(name):
    model = ZooTask.model(name).double()
    for module in model.modules():
        if hasattr(module, "activation_fn"):
            module.activation_fn = torch.nn.GELU()  # differences across the kink of OPT's ReLU are not its gradient
    task = ZooTask(name, model, n=3)
    batch = task.batch(range(3))
    moments = unit_moments(model, task, ["heads", "neurons", "sublayers"])
    some = [*range(0, len(moments.units), 17), len(moments.units) - 1, len(moments.units) - 2]

    def losses(unit, xi):
        with masked(model, xi={unit: xi}), torch.no_grad():
            return task.losses(task.outputs(model, batch), batch)

    slopes = [(losses(moments.units[i], 1.01) - losses(moments.units[i], 0.99)) / 0.02 for i in some]
    rows = torch.stack(slopes, dim=1).numpy()  # (N, some)
    assert np.abs(rows).max() > 1e-2
    # Some of these compute norms or softmax in float32 whatever their dtype, hence the steps and the tolerance.
    np.testing.assert_allclose(moments.mean[some], rows.mean(0), rtol=2e-3, atol=5e-5)
    np.testing.assert_allclose(moments.absolute[some], np.abs(rows).mean(0), rtol=2e-3, atol=5e-5)
    np.testing.assert_allclose(moments.squares[some], (rows**2).mean(0), rtol=5e-3, atol=1e-5)


@pytest.mark.parametrize("job", ["translator", "causal"])
def test_moments_with_emptied_sites_and_padding(job):
    build, make = JOBS[job]
    task = make(n=7)
    kind = "encoder" if job == "translator" else "decoder"
    model = remove(build(), [f"{kind}.0", f"{kind}_ffn.1", f"{kind}.1.2", f"{kind}_ffn.0.3-7"])
    moments = unit_moments(model, task, ["heads", "neurons", "sublayers"], tokens=24)
    rows = slow_gradients(model, task, ["heads", "neurons"])
    assert f"{kind}.0" not in moments.units
    assert f"{kind}_ffn.1" not in moments.units
    count = rows.shape[1]
    assert moments.units[:count] == anatomy(model, ["heads", "neurons"]).units
    np.testing.assert_allclose(moments.absolute[:count], np.abs(rows).mean(0), atol=1e-5)
    np.testing.assert_allclose(moments.squares[:count], (rows**2).mean(0), rtol=1e-3, atol=1e-6)


def test_a_layer_that_is_called_twice_adds_up():
    model = JOBS["classifier"][0]()
    model.bert.encoder.layer.append(model.bert.encoder.layer[0])
    task = classification(n=5)
    assert_moments(unit_moments(model, task, ["heads", "neurons"]), slow_gradients(model, task, ["heads", "neurons"]))


def test_moments_keep_no_row_of_an_earlier_batch(monkeypatch):
    alive, most = [], 0
    model, task = JOBS["classifier"][0](), classification(n=24)
    compute = gradient_module._example_gradients

    def spy(*args, **kwargs):
        nonlocal most
        rows = compute(*args, **kwargs)
        alive.append(weakref.ref(rows))
        most = max(most, sum(one() is not None for one in alive))
        return rows

    monkeypatch.setattr(gradient_module, "_example_gradients", spy)
    unit_moments(model, task, "neurons", tokens=12)
    assert len(alive) >= 6
    assert most <= 2


def test_the_memory_of_moments_does_not_grow_with_the_examples():
    """numpy's and Python's memory, which is where rows would be kept, in bytes per further example."""
    model = tiny_models.bert(pad_token_id=0, intermediate_size=1024)
    peaks = []
    for n in (40, 240):
        task = classification(n=n)
        unit_moments(model, task, "neurons", tokens=24)
        tracemalloc.start()
        unit_moments(model, task, "neurons", tokens=24)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    row = 4 * len(anatomy(model, "neurons").units)
    assert (peaks[1] - peaks[0]) / 200 < row / 4


@pytest.mark.parametrize("job", JOBS)
def test_equals_a_loop_over_single_examples_on_every_task(job):
    build, make = JOBS[job]
    model, task = build(), make(n=7)
    signed = head_gradients(model, task, tokens=24)  # several batches, with padding
    np.testing.assert_allclose(signed, slow_gradients(model, task), atol=1e-5)
    np.testing.assert_allclose(gradient(model, task), np.abs(signed), atol=1e-5)
    np.testing.assert_allclose(fisher(model, task), signed**2, rtol=1e-4, atol=1e-5)


def test_the_absolute_value_is_per_example():
    build, make = JOBS["classifier"]
    model, task = build(), make(n=12)
    signed = head_gradients(model, task)
    by_batch = gradient(model, task, per="batch", batch=4)
    assert by_batch.shape == (3, 8)
    np.testing.assert_allclose(by_batch[1], np.abs(signed[4:8].mean(0)), atol=1e-6)
    assert (by_batch.mean(0) < np.abs(signed).mean(0)).all()  # what cancels out


@pytest.mark.parametrize("name", ["bert", "marian", "albert", "llama"])
def test_per_token_sums_absolute_values_of_tokens(name):
    model = ZooTask.model(name)
    task = ZooTask(name, model, n=3)
    by_token = gradient(model, task, per="token")
    assert (by_token >= np.abs(head_gradients(model, task)) - 1e-6).all()
    assert (by_token > np.abs(head_gradients(model, task)) + 1e-5).any()


def test_leaves_the_model_as_it_was():
    model = JOBS["classifier"][0]().train()
    model.classifier.weight.requires_grad_(False)
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    head_gradients(model, classification(n=4))
    assert model.training
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == before
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(site.output._forward_pre_hooks for site in anatomy(model).sites)


def test_works_inside_no_grad():
    with torch.no_grad():
        assert np.abs(head_gradients(JOBS["classifier"][0](), classification(n=4))).max() > 0


def test_a_gradient_that_is_no_number_names_its_example():
    model = JOBS["classifier"][0]()
    task = classification(n=6)
    bad = task.features["input_ids"][3][1]
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[bad] = float("nan")
    affected = [place for place, ids in zip(task.places, task.features["input_ids"], strict=True) if bad in ids]
    assert len(affected) < 6
    with pytest.raises(BadData, match="gradient") as refusal:
        head_gradients(model, task)
    assert str(refusal.value).split(":")[0] in affected


def test_a_model_without_a_loss_is_refused():
    bare = zoo.build("bert")
    with pytest.raises(HeadcountError, match=r"BertModel .*\bloss\b.*logits"):
        head_gradients(bare, ZooTask("bert", bare, n=2))


def test_an_unknown_variant_gets_a_suggestion():
    with pytest.raises(HeadcountError, match=r"'tokens'.*'token'"):
        gradient(JOBS["classifier"][0](), classification(n=2), per="tokens")
