"""How the reference reads docstrings: examples are code, and each argument is an item of a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

ARGUMENT = re.compile(r"((?:\w+, )*\w+): (?=\S)")


class Docstrings(griffe.Extension):
    """Turns every docstring of the package into Markdown."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """Examples fenced; `name: …` and the deeper lines after it as an item; a new paragraph where a line starts anew."""
    written: list[str] = []
    in_example = False
    for line in docstring.splitlines():
        starts = line.startswith(">>> ")
        if starts and not in_example:
            written += ["", "```pycon"]
            in_example = True
        elif in_example and not line.strip():
            written.append("```")
            in_example = False
        if not in_example and (found := ARGUMENT.match(line)):
            names = ", ".join(f"`{name}`" for name in found[1].split(", "))
            written += ["", f"- {names}: {line[found.end() :]}"]
        else:
            written.append(line)
    return "\n".join([*written, "```"] if in_example else written)
