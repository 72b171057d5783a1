"""oneDNN's products against torch's own: values, gradients, what is left alone, and that everything is put back."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import zoo
from headcount.engine import fast_products, product, products
from headcount.evaluation import evaluate
from headcount.scoring import head_gradients, importance
from headcount.tasks.classification import toy_classifier

PLAIN = F.linear


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Taken on every processor, and for the smallest matrices."""
    if not products.has_onednn():
        pytest.skip("this torch comes without oneDNN")
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(products, "LEAST", 1)


@pytest.mark.parametrize("shape", [(5,), (3, 7), (2, 3, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_torch(shape, bias):
    torch.manual_seed(0)
    layer, rows = nn.Linear(6, 10, bias=bias), torch.randn(*shape, 6, requires_grad=True)
    wanted = [rows, *layer.parameters()]
    expected = layer(rows)
    gradients = torch.autograd.grad(expected.square().sum(), wanted)
    with fast_products():
        assert F.linear is not PLAIN
        found = layer(rows)
        again = torch.autograd.grad(found.square().sum(), wanted)
    torch.testing.assert_close(found, expected)
    for one, other in zip(again, gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_only_asked_gradients_are_computed():
    layer, rows = nn.Linear(6, 10).requires_grad_(False), torch.randn(4, 6, requires_grad=True)
    with fast_products():
        found = layer(rows)
    assert torch.equal(found.grad_fn.saved_tensors[1], layer.weight)
    assert found.grad_fn.saved_tensors[0] is None  # the rows are not kept for a weight that does not learn
    found.sum().backward()
    torch.testing.assert_close(rows.grad, layer.weight.sum(0).expand(4, 6))


@pytest.mark.parametrize("other", [torch.bfloat16, torch.float64])
def test_other_numbers_are_left_to_torch(other, monkeypatch):
    monkeypatch.setattr(products, "_multiply", lambda *args: pytest.fail("oneDNN was asked"))
    rows, layer = torch.randn(3, 6, dtype=other), nn.Linear(6, 4, dtype=other)
    with fast_products():
        assert layer(rows).dtype == other
        with torch.autocast("cpu", torch.bfloat16):
            assert nn.Linear(6, 4)(torch.randn(3, 6)).dtype == torch.bfloat16


def test_operations_that_are_counted_are_those_of_torch():
    layer, rows = nn.Linear(6, 4), torch.randn(3, 6)
    with fast_products(), FlopCounterMode(display=False) as counter:
        layer(rows)
    assert counter.get_total_flops() == 2 * 3 * 6 * 4


def test_operations_that_are_replaced_are_those_of_torch():
    """Relevance replaces linear layers by rules of its own."""
    seen = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    layer, rows = nn.Linear(6, 4), torch.randn(3, 6)
    with fast_products(), Watch():
        layer(rows)
    assert PLAIN in seen


def test_functions_that_are_transformed_take_torchs_own():
    layer, rows = nn.Linear(6, 4), torch.randn(3, 5, 6)
    with fast_products():
        found = torch.func.vmap(torch.func.grad(lambda row: layer(row).square().sum()))(rows)
    torch.testing.assert_close(found, 2 * layer(rows) @ layer.weight)


def test_slices_are_multiplied_too():
    wide = torch.randn(40, 30)
    torch.testing.assert_close(product(wide[:, :9].T, wide[:, 9:]), wide[:, :9].T @ wide[:, 9:])
    torch.testing.assert_close(product(wide.T, wide), wide.T @ wide)


def test_torch_is_as_before_whatever_happens():
    with fast_products(), fast_products():
        inside = F.linear
    assert inside is not PLAIN
    assert F.linear is PLAIN
    with pytest.raises(ValueError, match="boom"), fast_products():
        raise ValueError("boom")
    assert F.linear is PLAIN


def test_blocks_of_several_threads_end_in_any_order():
    begun, end = threading.Event(), threading.Event()

    def other():
        with fast_products():
            begun.set()
            end.wait(10)

    thread = threading.Thread(target=other)
    with fast_products():
        thread.start()
        begun.wait(10)
    assert F.linear is not PLAIN  # the other thread is inside still
    end.set()
    thread.join()
    assert F.linear is PLAIN


@pytest.mark.parametrize("family", ["bert", "llama", "t5", "albert", "gpt2"])
def test_models_give_the_same(family):
    model, inputs = zoo.build(family), zoo.inputs(family)
    with torch.no_grad():
        expected = model(**inputs)
        with fast_products():
            found = model(**inputs)
    torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=1e-5)


def test_evaluation_and_importance_take_it_and_give_the_same(monkeypatch):
    model, task = toy_classifier()
    asked = []
    multiply = products._multiply
    monkeypatch.setattr(products, "_multiply", lambda *args: asked.append(1) or multiply(*args))

    def results():
        relevance = importance(model, task, "relevance").values
        return evaluate(model, task).of(), head_gradients(model, task), relevance

    found = results()
    assert asked
    monkeypatch.setattr(products, "onednn_is_faster", lambda: False)
    for one, other in zip(found, results(), strict=True):
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), atol=1e-5, rtol=1e-4)


def test_a_processor_is_asked_what_it_is(monkeypatch):
    monkeypatch.undo()
    for name, wide, answer in (
        ("AMD EPYC 9555", True, True),
        ("AMD EPYC 7763", False, False),
        ("Intel Xeon", True, False),
    ):
        known = {"cpu_name": name, "avx512_f": wide}
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda known=known: known, raising=False)
        monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
        products.onednn_is_faster.cache_clear()
        assert products.onednn_is_faster() is (answer and products.has_onednn())
    products.onednn_is_faster.cache_clear()
