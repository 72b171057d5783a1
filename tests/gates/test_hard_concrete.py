"""Hard Concrete gates against their formulas and against simulation."""

import math

import pytest
import torch

from headcount.gates.hard_concrete import LEFT, RIGHT, TEMPERATURE, HardConcrete


def gates_at(*values):
    gates = HardConcrete(len(values))
    with torch.no_grad():
        gates.log_alpha.copy_(torch.tensor(values))
    return gates


def test_a_sample_is_the_formula():
    gates = gates_at(-1.0, 0.3, 2.0)
    drawn = gates.sample(torch.Generator().manual_seed(4))
    u = torch.rand(3, generator=torch.Generator().manual_seed(4)).double()
    for value, log_a, each in zip(u.tolist(), (-1.0, 0.3, 2.0), drawn.tolist(), strict=True):
        s = 1 / (1 + math.exp(-(math.log(value) - math.log(1 - value) + log_a) / TEMPERATURE))
        assert each == pytest.approx(min(1, max(0, s * (RIGHT - LEFT) + LEFT)), abs=1e-5)


def test_the_chance_to_be_open_is_how_often_samples_are():
    values = (-2.0, -0.5, 0.0, 1.0)
    gates, many = gates_at(*values), gates_at(*(value for value in values for _ in range(20_000)))
    drawn = many.sample(torch.Generator().manual_seed(0)).reshape(4, 20_000)
    assert torch.allclose((drawn > 0).float().mean(1), gates.chances().detach(), atol=0.012)
    assert gates.penalty().item() == pytest.approx(gates.chances().sum().item())


def test_gates_start_open_and_carry_gradients():
    gates = HardConcrete(5)
    assert gates.settled().tolist() == [1.0] * 5
    assert not gates.closed().any()
    assert gates.decided() == 1.0
    gates.penalty().backward()
    assert (gates.log_alpha.grad > 0).all()


def test_decided_counts_gates_near_0_or_1():
    gates = gates_at(-5.0, 5.0, 0.0, 0.1)
    assert gates.decided() == 0.5
    assert gates.closed().tolist() == [True, False, False, False]
