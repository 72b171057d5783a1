"""Pages are run: their Python and their commands print what is shown, and every link leads somewhere."""

from __future__ import annotations

import contextlib
import io
import re
import sys

import pytest
from transformers.utils import logging

from conftest import REPOSITORY
from headcount.cli import main

PAGES = ["README.md", "CONTRIBUTING.md", *sorted(f"docs/{page.name}" for page in (REPOSITORY / "docs").glob("*.md"))]
BLOCK = re.compile(r"```(\w*)\n(.*?)```", flags=re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")


def squeezed(text):
    """Lines without the spaces at their ends."""
    return [line.rstrip() for line in text.strip().splitlines()]


@pytest.mark.parametrize(("page", "runs"), [("README.md", 1), ("docs/masking.md", 5), ("docs/mistakes.md", 7)])
def test_python_and_commands(repository, page, runs, tmp_path, monkeypatch):
    """In their order, in one empty directory: a command may read what the Python before it has saved."""
    together = {} if page == "docs/mistakes.md" else None  # where later blocks use the names of earlier ones
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    logging.disable_progress_bar()
    blocks = BLOCK.findall((repository / page).read_text(encoding="utf-8"))
    ran = 0
    for (kind, content), (next_kind, shown) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if kind == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(content, {} if together is None else together)
            assert next_kind == "text"
            assert squeezed(printed.getvalue()) == squeezed(shown)
            ran += 1
        elif kind == "console":
            for command in content.split("$ ")[1:]:
                line, _, expected = command.partition("\n")
                assert squeezed(output_of(line, monkeypatch)) == squeezed(expected)
                ran += 1
    assert ran == runs


def output_of(line, monkeypatch):
    monkeypatch.setattr(sys, "argv", line.split())
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main()
    return printed.getvalue()


def anchors(text):
    """The anchors of a page's headings, as they are made on the web."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(repository, page):
    file = repository / page
    for link in LINK.findall(file.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        path = (file.parent / target) if target else file
        assert path.exists(), link
        assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), link


def test_links_are_found(repository):
    """The expression above finds the links of the page that has the most."""
    assert "docs/masking.md" in LINK.findall((repository / "README.md").read_text(encoding="utf-8"))
