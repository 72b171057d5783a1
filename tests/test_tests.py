"""Finds tests that assert nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
TESTS = Path(__file__).resolve().parent
CHECKS = ("assert_", "check_")  # functions of these names assert for a test, and must do so themselves


def unasserted(source: str) -> list[str]:
    """The tests and checks in the source that assert nothing, themselves or by a function beside them."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, FUNCTION)]
    known: set[str] = set()
    while True:
        asserting = [function for function in functions if any(asserts(node, known) for node in inside(function))]
        if known == (names := {function.name for function in asserting}):
            break
        known = names
    idle = (function.name for function in functions if function not in asserting)
    return [name for name in idle if name.startswith(("test_", *CHECKS))]


def inside(function: ast.AST) -> Iterator[ast.AST]:
    return (node for node in ast.walk(function) if node is not function)


def asserts(node: ast.AST, known: set[str]) -> bool:
    """Whether the node can fail: an assert of something that varies, `pytest.raises`, a check."""
    if isinstance(node, ast.Assert):
        return not isinstance(node.test, ast.Constant)
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute):
        is_pytest = isinstance(node.func.value, ast.Name) and node.func.value.id == "pytest"
        return node.func.attr.startswith(CHECKS) or (is_pytest and node.func.attr in ("raises", "warns"))
    return isinstance(node.func, ast.Name) and (node.func.id in known or node.func.id.startswith(CHECKS))


@pytest.mark.parametrize("file", sorted(TESTS.rglob("*.py")), ids=lambda file: file.relative_to(TESTS).as_posix())
def test_every_test_asserts(file):
    assert unasserted(file.read_text(encoding="utf-8")) == []


BAD = """
def test_runs():
    main()

class TestModel:
    def test_forward(self, model):
        output = model(1)
        print(output)

def test_trivial():
    assert True

def test_reraises():
    raises(ValueError)

class TestOther:
    def test_asserts_here_only(self):
        assert main()

class TestAnother:
    def test_asserts_here_only(self):
        main()

async def test_later():
    await main()

def check_model(model):
    model.eval()

def test_without_help():
    build_model()

def build_model():
    return Model()
"""

GOOD = """
def test_asserts():
    for item in (1, 2):
        assert item

def test_raises():
    with pytest.raises(ValueError):
        main()

def test_compares():
    torch.testing.assert_close(1, 1)

class TestModel:
    def test_with_a_check(self):
        check_model(self.model)

def check_model(model):
    assert model

def test_two_steps_away():
    agree(1, 2)

def agree(one, two):
    check_model(one)
"""


def test_finds_tests_that_cannot_fail():
    names = {"test_runs", "test_trivial", "test_reraises", "test_later", "test_forward", "test_without_help"}
    assert set(unasserted(BAD)) == names | {"check_model", "test_asserts_here_only"}


def test_leaves_real_tests_alone():
    assert unasserted(GOOD) == []
