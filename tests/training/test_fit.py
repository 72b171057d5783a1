"""The training loop: it learns, keeps to its schedule, and an interrupted run ends in the same bits."""

import json
import math

import numpy as np
import pytest
import torch

from headcount.errors import HeadcountError, RunConflict
from headcount.training import Training, fit
from toy_jobs import JOBS, classification

OPTIONS = {"epochs": 3, "lr": 3e-3, "tokens": 64}


@pytest.fixture
def build():
    return JOBS["classifier"][0]


def same(one, other):
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(name == again and torch.equal(a, b) for (name, a), (again, b) in pairs)


def mean_loss(model, task):
    batch = task.batch(range(len(task)))
    with torch.no_grad():
        return task.losses(task.outputs(model.eval(), batch), batch).mean().item()


def test_it_learns_and_tells(build):
    model, task, told, epochs = build(), classification(0, 24), [], []
    before = mean_loss(model, task)
    fit(model, task, **OPTIONS, progress=lambda share, loss: told.append((share, loss)), after_epoch=epochs.append)
    assert mean_loss(model, task) < before
    assert epochs == [1, 2, 3]
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert all(math.isfinite(loss) for _, loss in told)
    assert not model.training


def test_what_requires_no_gradient_stays(build):
    model = build()
    frozen = model.get_input_embeddings().requires_grad_(False).weight.clone()
    fit(model, classification(0, 12), **OPTIONS)
    assert torch.equal(model.get_input_embeddings().weight, frozen)


def test_the_seed_decides_and_the_global_generator_does_not(build):
    task, one, other, third = classification(0, 24), build(), build(), build()
    torch.manual_seed(1)
    fit(one, task, **OPTIONS)
    torch.manual_seed(2)
    drawn = torch.get_rng_state()
    fit(other, task, **OPTIONS)
    assert torch.equal(torch.get_rng_state(), drawn)
    fit(third, task, **OPTIONS, seed=1)
    assert same(one, other)
    assert not same(one, third)


@pytest.mark.parametrize("moment", [0.2, 0.5, 0.8])
def test_an_interrupted_run_ends_in_the_same_bits(build, tmp_path, moment):
    task, undisturbed, epochs = classification(0, 24), build(), []
    fit(undisturbed, task, **OPTIONS)

    def interrupt(share, loss):
        if share > moment:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(build(), task, **OPTIONS, directory=tmp_path / "state", progress=interrupt, after_epoch=epochs.append)
    resumed, again = build(), build()
    fit(resumed, task, **OPTIONS, directory=tmp_path / "state", after_epoch=epochs.append)
    assert same(undisturbed, resumed)
    assert epochs == [1, 2, 3]  # none twice
    fit(again, task, **OPTIONS, directory=tmp_path / "state", after_epoch=epochs.append)  # nothing is left to do
    assert same(undisturbed, again)
    assert epochs == [1, 2, 3]


def test_another_training_does_not_resume_there(build, tmp_path):
    fit(build(), classification(0, 12), **OPTIONS, directory=tmp_path / "state")
    other = build()
    with torch.no_grad():
        other.classifier.bias += 1
    for model, changed in ((build(), {"lr": 1e-3}), (build(), {"seed": 1}), (other, {})):
        with pytest.raises(RunConflict, match="state"):
            fit(model, classification(0, 12), **{**OPTIONS, **changed}, directory=tmp_path / "state")
    with pytest.raises(RunConflict, match="state"):
        fit(build(), classification(1, 12), **OPTIONS, directory=tmp_path / "state")


@pytest.mark.parametrize("epoch", [0, 4, "2", None])
def test_an_impossible_epoch_is_refused(build, tmp_path, epoch):
    fit(build(), classification(0, 12), **OPTIONS, directory=tmp_path)
    file = tmp_path / "training.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "epoch": epoch}))
    with pytest.raises(RunConflict, match=r"training\.json"):
        fit(build(), classification(0, 12), **OPTIONS, directory=tmp_path)


def test_a_loss_that_is_not_finite_stops_it(build):
    model = build()
    with torch.no_grad():
        model.classifier.bias.fill_(float("inf"))
    with pytest.raises(HeadcountError, match=r"step 1 .*lr=…"):
        fit(model, classification(0, 12), **OPTIONS)


def test_the_schedule_and_the_plan(build):
    model, task = build(), classification(0, 20)
    batches = [[index] for index in range(20)]
    weights = list(model.parameters())
    groups = [{"params": weights[:1], "lr": 2.0}, {"params": weights[1:], "lr": 0.5, "steady": True}]
    training = Training(model, task, groups, batches=batches, epochs=2, seed=3)
    # (step + 1) / 4 in the first tenth of 40 steps, then (40 - step) / 36
    assert [training.rate(step) for step in (0, 3, 4, 22, 39)] == pytest.approx([0.25, 1.0, 1.0, 0.5, 1 / 36])
    assert sorted(training.plan(0)) == sorted(training.plan(1)) == batches
    assert training.plan(0) == [batches[i] for i in np.random.default_rng([3, 0]).permutation(20)]
    assert training.plan(0) != training.plan(1)
    training.step(0, task.batch([0]))
    assert [group["lr"] for group in training.optimizer.param_groups] == [0.5, 0.5]
    training.step(22, task.batch([0]))
    assert [group["lr"] for group in training.optimizer.param_groups] == [1.0, 0.5]
