"""The notebooks open with outputs, and run from the top in an empty directory."""

from __future__ import annotations

import importlib.util

import nbformat
import pytest

from conftest import REPOSITORY

NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
NAMES = ["inside_a_language_model", "prune_your_classifier", "which_heads_matter"]


def test_all_of_them_are_found():
    assert [file.stem for file in NOTEBOOKS] == NAMES


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_opens_with_outputs_in_it(file):
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))  # from the top, once
    outputs = [output for cell in code for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    shown = "".join("".join(output.get("data", {}).get("text/html", "")) for output in outputs)
    assert shown.count("headcount-result") > 1  # results show themselves
    assert "<script" not in shown
    assert notebook.cells[0].source.startswith("# ")


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file):
    spec = importlib.util.spec_from_file_location("rerun", file.parent / "rerun.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    stored, again = nbformat.read(file, as_version=4), module.executed(file)
    assert kinds(stored) == kinds(again)


def kinds(notebook):
    """The kinds of output of every cell."""
    return [[sorted(output.get("data", {})) for output in cell.get("outputs", [])] for cell in notebook.cells]
