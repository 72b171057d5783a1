"""The documentation as a site: every page is in it, every public name is explained, the guides type what exists."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import shlex
import subprocess
import sys

import pytest
import typer
import yaml

import headcount
from conftest import REPOSITORY
from headcount.cli.app import COMMANDS, app

DOCS = REPOSITORY / "docs"
GUIDES = ["tutorial.md", *sorted(page.name for page in DOCS.glob("how-to-*.md"))]
LISTED = re.findall(r"^::: headcount\.([\w.]+)$", (DOCS / "reference.md").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def pages():
    """What the site does to pages, which needs mkdocs only when it builds."""
    spec = importlib.util.spec_from_file_location("pages", DOCS / "site" / "pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_nav(entry):
    """Every page that a part of the navigation names."""
    if isinstance(entry, str):
        return [entry]
    return [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in in_nav(part)]


def test_the_navigation_names_every_page_once(pages):
    named = in_nav(yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    there = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    notebooks = [page.relative_to(REPOSITORY).as_posix() for page in REPOSITORY.glob("notebooks/*.ipynb")]
    assert sorted(named) == sorted([*there, *notebooks, *pages.BESIDE.values()])
    assert all((REPOSITORY / page).is_file() for page in pages.BESIDE)


def test_the_reference_has_every_public_name_once():
    assert sorted(name for name in LISTED if "." not in name) == sorted(headcount.__all__)
    assert len(set(LISTED)) == len(LISTED) > len(headcount.__all__)


@pytest.mark.parametrize("name", LISTED)
def test_every_name_in_the_reference_is_documented(name):
    module, _, last = name.rpartition(".")
    thing = getattr(importlib.import_module(f"headcount.{module}") if module else headcount, last)
    assert inspect.getdoc(thing)
    if inspect.isclass(thing):
        members = {member: getattr(thing, member) for member in vars(thing) if not member.startswith("_")}
        told = {member for member, value in members.items() if inspect.getdoc(value)}
        told |= {member for member in vars(headcount.Task) if inspect.getdoc(getattr(headcount.Task, member))}
        said = {member for member, value in members.items() if callable(value) or isinstance(value, property)}
        assert said <= told


def test_links_out_of_the_documentation_become_paths(pages):
    assert pages.resolved("[report](docs/report.md#better) and ![x](docs/images/report.png)", "") == (
        "[report](report.md#better) and ![x](images/report.png)"
    )
    assert pages.resolved("[how](../CONTRIBUTING.md#layout)", "docs") == "[how](contributing.md#layout)"
    assert pages.resolved("[A test](../tests/zoo.py)", "docs") == "A test (`tests/zoo.py`)"
    assert pages.resolved("[zoo.py](../tests/zoo.py)", "docs") == "zoo.py"
    same = "[web](https://example.org/a.md), [here](#there), [beside](pruning.md)"
    assert pages.resolved(same, "docs") == same


def commands(page):
    """The command lines of a page, in its blocks and in its text."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^headcount .*$", text, re.MULTILINE) + re.findall(r"`(headcount \w+ [^`\u2026]*)`", text)


@pytest.mark.parametrize(("page", "line"), [(page, line) for page in GUIDES for line in commands(page)])
def test_what_the_guides_type_is_understood(page, line):
    name, *words = shlex.split(line, comments=True)[1:]
    assert name in COMMANDS
    command = typer.main.get_command(app).get_command(None, name)
    with command.make_context(name, words) as context:  # refuses what is not an option, or not complete
        assert context.params


@pytest.mark.parametrize("page", GUIDES)
def test_the_guides_import_what_exists_and_use_what_they_import(page):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    tree = ast.parse("".join(blocks))
    imported = [name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for name in node.names]
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert imported
    assert {name.name for name in imported} <= used
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, name.name) for name in node.names)


def test_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "tutorial.md").read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)
    assert names["pruned"].before > 0.9  # it has learnt the task
    assert names["pruned"].removed
    assert names["pruned"].change >= -0.05
    assert [point.pruned for point in names["curve"].points] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert headcount.evaluate(names["again"], names["test"]).score() == names["pruned"].after
    assert "report.html" in {file.name for file in tmp_path.iterdir()}
    assert "on-inferior" in capsys.readouterr().out


@pytest.mark.slow
def test_the_site_is_built_strictly_and_a_dead_link_fails(tmp_path):
    pytest.importorskip("mkdocs", reason="`make docs` installs it in an environment of its own")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path / "site")]
    done = subprocess.run(build, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "reference.html").read_text(encoding="utf-8")
    assert all(f'id="headcount.{name}"' in page for name in LISTED)
    assert (tmp_path / "site" / "search" / "search_index.json").is_file()
