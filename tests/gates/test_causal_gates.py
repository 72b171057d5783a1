"""Causal gates: heads planted to help, to hinder and to do nothing are told apart, and the model stays as it is."""

import re

import numpy as np
import pytest
import torch

import zoo
from headcount import Head, HeadcountError, anatomy, masked, report
from headcount.gates import CausalGates, Gating, causal_gates, gate_training
from headcount.gates.gate_training import CausalTraining
from headcount.gates.hard_concrete import GatedUnits
from headcount.tasks import ACCURACY
from oracle import zeroed
from probe import EXAMPLES, Probe
from toy_jobs import JOBS

QUICK = Gating(epochs=60, gate_lr=0.3, tokens=27)
HINDERS = {"bert": ["encoder.0.1", "encoder.2.3"], "llama": ["decoder.1.2"], "t5": ["encoder.0.0", "cross.1.1"]}
NOTHING = {"bert": ["encoder.1.0", "encoder.2.0"], "llama": ["decoder.0.7"], "t5": ["decoder.2.2"]}


class Planted(Probe):
    """The loss is the distance from what the model puts out without the heads that hinder."""

    def __init__(self, name, model):
        super().__init__(name, model)
        with masked(model, off=HINDERS[name]), torch.no_grad():
            self.target = self.outputs(model, self.batch(range(EXAMPLES)))

    def losses(self, outputs, batch):
        off = outputs - self.target[list(batch.indices)]
        return 100 * off.square().flatten(1).mean(1)


@pytest.mark.parametrize("name", HINDERS)
def test_planted_heads_are_told_apart(name):
    model = zeroed(zoo.build(name), name, NOTHING[name])
    found = causal_gates(model, Planted(name, model), seeds=2, settings=QUICK)
    roles = {str(head): role for head, (role, _) in zip(found.heads, found.roles, strict=True)}
    expected = {str(head): "facilitating" for head in anatomy(model).heads}
    expected |= dict.fromkeys(HINDERS[name], "interfering") | dict.fromkeys(NOTHING[name], "irrelevant")
    assert roles == expected
    assert all(agreement == 1 for _, agreement in found.roles)


def test_the_loss_is_the_formula():
    build, make = JOBS["classifier"]
    model, task = build().eval(), make(0, 6)
    log_odds = torch.linspace(-3, 3, 8).requires_grad_()
    batch = task.batch(range(6))
    got = CausalTraining(model, task, log_odds, GatedUnits.find(model), Gating(), 0, price=0.25).loss(0, batch).item()
    with masked(model, xi=log_odds.detach().sigmoid()), torch.no_grad():
        plain = task.losses(task.outputs(model, batch), batch).mean().item()
    odds = log_odds.detach().sigmoid() / (1 - log_odds.detach().sigmoid())
    assert got == pytest.approx(plain - 0.25 * float(odds.log().sum()), abs=1e-4)


def test_the_fits_with_a_price_begin_where_the_one_without_ended(monkeypatch):
    begun = []
    init = CausalTraining.__init__

    def noting(self, model, task, log_odds, units, settings, seed, price):
        begun.append((price, log_odds.detach().clone()))
        init(self, model, task, log_odds, units, settings, seed, price)

    monkeypatch.setattr(CausalTraining, "__init__", noting)
    build, make = JOBS["classifier"]
    model = build()
    fits = gate_training.fit_causal_gates(model, make(0, 6), GatedUnits.find(model), Gating(epochs=3), 4, 0.02)
    assert [price for price, _ in begun] == [0.0, 0.02, -0.02]
    for _, start in begun[1:]:
        assert torch.allclose(start.sigmoid(), fits[0])
    assert (fits[1] > fits[2]).all()


@pytest.mark.parametrize("job", JOBS)
def test_every_kind_of_model_stays_as_it_is(job):
    build, make = JOBS[job]
    model = build().train()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    learning = [parameter.requires_grad for parameter in model.parameters()]
    found = causal_gates(model, make(0, 6), seeds=2, settings=Gating(epochs=2))
    assert model.training
    assert [parameter.requires_grad for parameter in model.parameters()] == learning
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert found.opened.shape == found.closed.shape == (2, len(anatomy(model).heads))
    assert not np.array_equal(found.opened[0], found.opened[1])  # seeds differ
    again = causal_gates(model, make(0, 6), seeds=2, settings=Gating(epochs=2))
    assert np.array_equal(found.closed, again.closed)


def test_the_model_is_given_back_after_an_error(monkeypatch):
    build, make = JOBS["classifier"]
    model = build()

    def fail(self, step):
        raise KeyboardInterrupt

    monkeypatch.setattr(CausalTraining, "after_step", fail)
    with pytest.raises(KeyboardInterrupt):
        causal_gates(model, make(0, 6))
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_roles_scores_and_agreement():
    opened = np.array([[0.98, 0.98, 0.02], [0.98, 0.98, 0.98], [0.98, 0.9, 0.02]])
    closed = np.array([[0.98, 0.02, 0.02], [0.98, 0.02, 0.02], [0.02, 0.02, 0.02]])
    heads = tuple(Head("encoder", 0, index) for index in range(3))
    found = CausalGates(heads, opened, closed, 0.01, ACCURACY, 30)
    assert found.roles == [
        ("facilitating", pytest.approx(2 / 3)),
        ("irrelevant", 1.0),
        ("interfering", pytest.approx(2 / 3)),
    ]
    rows = found.to_json()["heads"]
    assert rows[0]["facilitating"] == pytest.approx((0.98 + 0.98 + 0.02) / 3)
    assert rows[1]["irrelevant"] == pytest.approx((0.98 * 0.98 * 2 + 0.9 * 0.98) / 3)
    assert rows[2]["interfering"] == pytest.approx((0.98 + 0.02 + 0.98) / 3)
    assert "1 facilitating, 1 irrelevant, 1 interfering heads; 3 seeds" in repr(found)
    assert "encoder.0.1" in found.report()


def test_a_run_keeps_every_seed(tmp_path, monkeypatch):
    build, make = JOBS["classifier"]
    model, task, settings = build(), make(0, 6), Gating(epochs=2)
    whole = causal_gates(model, task, seeds=3, settings=settings)
    fit, seeds = gate_training.fit_causal_gates, []

    def interrupted(model, task, units, settings, seed, price, progress=None):
        if len(seeds) == 2:
            raise KeyboardInterrupt
        seeds.append(seed)
        return fit(model, task, units, settings, seed, price, progress)

    monkeypatch.setattr("headcount.gates.pipeline.fit_causal_gates", interrupted)
    with pytest.raises(KeyboardInterrupt):
        causal_gates(model, task, seeds=3, settings=settings, run=tmp_path / "run")
    seeds.clear()
    resumed = causal_gates(model, task, seeds=3, settings=settings, run=tmp_path / "run")
    assert seeds == [2]
    assert np.array_equal(resumed.closed, whole.closed)
    with pytest.raises(HeadcountError, match="run"):
        causal_gates(model, task, seeds=3, lam=0.5, settings=settings, run=tmp_path / "run")


@pytest.mark.parametrize(("options", "fact"), [({"lam": 0}, "lam="), ({"lam": -1}, "lam="), ({"seeds": 0}, "seeds=")])
def test_prices_and_seeds_that_cannot_be(options, fact):
    build, make = JOBS["classifier"]
    with pytest.raises(HeadcountError, match=fact):
        causal_gates(build(), make(0, 6), **options)


def test_too_few_steps_are_said():
    build, make = JOBS["classifier"]
    short, long = (causal_gates(build(), make(0, 6), seeds=1, settings=Gating(epochs=n, gate_lr=0.4)) for n in (2, 40))
    assert "each fit took 2" in " ".join(short.remarks)
    assert not long.remarks


def test_kinds_and_a_report_of_the_result(tmp_path):
    build, make = JOBS["translator"]
    model = build()
    found = causal_gates(model, make(0, 6), seeds=1, kinds=["cross"], settings=Gating(epochs=2))
    assert {head.kind for head in found.heads} == {"cross"}
    page = report(found, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Causal head gating" in page
    assert all(str(head) in page for head in found.heads)


def test_the_example_of_the_documentation_prints_what_is_shown(repository, capsys):
    page = (repository / "docs/gates.md").read_text(encoding="utf-8")
    ((code, shown),) = re.findall(r"```python\n((?:(?!```).)*causal_gates.*?)```\n\n```text\n(.*?)```", page, re.S)
    exec(code, {})
    assert capsys.readouterr().out.strip() == shown.strip()
