"""The gradient method against a slow loop written from the other side of M19's equation."""

import numpy as np
import pytest
import torch

import zoo
from headcount.errors import BadData, HeadcountError
from headcount.scoring.gradient import fisher, gradient, head_gradients
from headcount.structure import anatomy
from toy_jobs import JOBS, classification
from zoo_tasks import ZooTask


def keep_context(kept, name):
    def hook(module, args):
        args[0].retain_grad()
        kept.setdefault(name, []).append(args[0])

    return hook


def slow_gradients(model, task):
    """Att_h(x)^T dL(x)/dAtt_h(x) (M19 eq. 2, right side), one example and one backward pass at a time: (N, heads)"""
    rows = []
    for index in range(len(task)):
        batch = task.batch([index])
        kept = {}
        found = anatomy(model)
        handles = [site.output.register_forward_pre_hook(keep_context(kept, site.name)) for site in found.sites]
        task.losses(task.outputs(model, batch), batch).sum().backward()
        for handle in handles:
            handle.remove()
        row = []
        for site in found.sites:
            shape = (len(site.kept), site.head_dim)
            parts = [(c.detach() * c.grad).unflatten(-1, shape).sum((0, 1, 3)) for c in kept[site.name]]
            row.append(sum(parts))
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
