"""What holds for every task, with labels and without: fast paths agree, batches do not matter, gradients are exact."""

import numpy as np
import pytest
import torch

import every_task
from headcount import evaluate, load_task, remove, unlabeled
from headcount.cli.model_loading import load_model
from headcount.scoring.gradient import head_gradients
from headcount.structure import anatomy
from headcount.training import Recovery
from headcount.training.recovery import Recovering


@pytest.fixture(scope="module", params=every_task.KINDS)
def loaded(request, tmp_path_factory):
    """The task as `load_task` guesses it from the model and the data alone."""
    model_path, data = every_task.every_task(request.param, tmp_path_factory.mktemp(request.param))
    model, reader = load_model(str(model_path))
    task = load_task(None, data, reader, model)
    assert task.kind == {"causal": "language"}.get(request.param, request.param)
    return model, task


@pytest.fixture(scope="module", params=["labels", "none"])
def pair(request, loaded):
    model, task = loaded
    return model, task if request.param == "labels" else unlabeled(task, model)


def masks_of(model):
    heads = anatomy(model).heads
    return [[], *([head] for head in heads[::3]), [heads[0], heads[-1]]]


def test_fast_and_plain_paths_agree(pair):
    model, task = pair
    masks = masks_of(model)
    fast, plain = (evaluate(model, task, masks, fast=fast) for fast in (True, False))
    assert np.allclose(fast.values, plain.values, atol=1e-4)
    assert np.isfinite(fast.scores()).all()
    assert len(np.unique(plain.values.sum(1), axis=0)) > 1  # the masks make a difference


def test_an_example_does_not_depend_on_its_batch(pair):
    model, task = pair
    together = task.batch(range(len(task)))
    with torch.no_grad():
        losses = task.losses(task.outputs(model, together), together)
        for i in range(len(task)):
            alone = task.batch([i])
            assert torch.allclose(task.losses(task.outputs(model, alone), alone)[0], losses[i], atol=1e-5)


def test_gradients_of_an_example_are_its_own(pair):
    model, task = pair
    together = head_gradients(model, task)
    alone = np.concatenate([head_gradients(model, task.subset([i])) for i in range(3)])
    assert np.allclose(together[:3], alone, atol=1e-4)
    assert np.abs(together).max() > 1e-4


def test_the_original_teaches_only_what_was_lost(pair):
    model, task = pair
    batch = task.batch(range(len(task)))
    for removed in ([], anatomy(model).heads[::3]):
        smaller = remove(model, removed)
        loss = Recovering(smaller, task, Recovery(1, distill=1.0, hidden=1.0), model).loss(1, batch)
        loss.backward()
        gradients = [weight.grad for weight in smaller.parameters() if weight.grad is not None]
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert (loss.item() > 1e-5) == bool(removed)


def test_subsets_keep_labels_and_keys(pair):
    model, task = pair
    some = task.subset([4, 1])
    assert some.keys() == [task.keys()[4], task.keys()[1]]
    whole, part = (evaluate(model, one).of() for one in (task, some))
    assert np.allclose(part, whole[[4, 1]], atol=1e-4)
    assert task.signature() != some.signature()
