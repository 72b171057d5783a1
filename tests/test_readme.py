"""The README is run: its Python prints what it shows, its commands print what it shows, its links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import re
import sys

import pytest
from transformers.utils import logging

from headcount.cli import main

BLOCK = re.compile(r"```(\w*)\n(.*?)```", flags=re.DOTALL)


@pytest.fixture
def readme(repository):
    return (repository / "README.md").read_text(encoding="utf-8")


def squeezed(text):
    """Lines without the spaces at their ends."""
    return [line.rstrip() for line in text.strip().splitlines()]


def test_python_and_commands(readme, tmp_path, monkeypatch):
    """In their order, in one empty directory: a command may read what the Python before it has saved."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    logging.disable_progress_bar()
    blocks = BLOCK.findall(readme)
    ran = 0
    for (kind, content), (next_kind, shown) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if kind == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(content, {})
            assert next_kind == "text"
            assert squeezed(printed.getvalue()) == squeezed(shown)
            ran += 1
        elif kind == "console":
            for command in content.split("$ ")[1:]:
                line, _, expected = command.partition("\n")
                assert squeezed(output_of(line, monkeypatch)) == squeezed(expected)
                ran += 1
    assert ran >= 3


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


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/families.md"])
def test_links_lead_somewhere(repository, page):
    file = repository / page
    links = re.findall(r"\]\((?!https?:)([^)\s]+)\)", file.read_text(encoding="utf-8"))
    for link in links:
        target, _, anchor = link.partition("#")
        path = (file.parent / target) if target else file
        assert path.exists(), link
        assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), link
    assert links or page == "CONTRIBUTING.md"
