"""A run as the report sees it, tolerant of whatever is missing; runs grouped by the model that they are about."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from headcount.errors import HeadcountError
from headcount.heads import Head

NAMELESS = "a model without a name"
ALONE = "ablate --mode all-but-one"
# What a result without a command must be, told by keys that only that command writes.
TELLING = {
    "curve": ("curves",),
    "track": ("checkpoints",),
    "bench": ("rows",),
    "compare": ("pearson", "heads"),
    "prune": ("removed", "before", "noninferior"),
    "gates": ("removed", "before"),
    "importance": ("method", "heads"),
    "ablate": ("base", "heads"),
    "roles": ("heads",),
    "evaluate": ("score",),
}


@dataclass(frozen=True, eq=False)
class Run:
    """One run: where it lies, what its `run.json` says, and how many shards it has kept."""

    content: Mapping[str, Any]
    place: str = ""
    shards: int = 0

    @cached_property
    def signature(self) -> dict[str, Any]:
        return mapping(self.content.get("signature"))

    @cached_property
    def arguments(self) -> dict[str, Any]:
        return mapping(self.content.get("arguments"))

    @property
    def finished(self) -> bool:
        return self.content.get("finished", True) is True

    @cached_property
    def command(self) -> str:
        """The command that made it; for an unfinished run its signature tells."""
        for said in (self.content.get("command"), self.signature.get("command")):
            if isinstance(said, str):
                return ALONE if said == "ablate" and self._alone else said
        if self._alone:
            return ALONE
        return next((name for name, keys in TELLING.items() if all(key in self.content for key in keys)), "unknown")

    @property
    def _alone(self) -> bool:
        return "layers" in self.content or self.signature.get("mode") == "all-but-one"

    @cached_property
    def model(self) -> str:
        """The model as it was named."""
        said = self.content.get("model") or self.arguments.get("model")
        if not isinstance(said, str):
            said = mapping(self.signature.get("model")).get("name")
        return said if isinstance(said, str) and said else NAMELESS

    @property
    def fingerprint(self) -> str | None:
        found = mapping(self.signature.get("model")).get("fingerprint")
        return found if isinstance(found, str) else None

    @property
    def command_line(self) -> str | None:
        """What was typed, ready to be pasted."""
        words = self.arguments.get("command_line")
        return shlex.join(["headcount", *map(str, words)]) if isinstance(words, list) and words else None

    def number(self, key: str) -> float | None:
        return number(self.content.get(key))

    def word(self, key: str) -> str | None:
        """A text of the run, or None."""
        said = self.content.get(key)
        return said if isinstance(said, str) and said else None

    def rows(self, key: str) -> list[dict[str, Any]]:
        """A list of objects, such as `heads`; what is none is left out."""
        return rows(self.content.get(key))

    @cached_property
    def heads(self) -> dict[Head, dict[str, Any]]:
        """The objects of `heads` by their head; the first if a head has several."""
        found: dict[Head, dict[str, Any]] = {}
        for row in self.rows("heads"):
            head = parse(row.get("head"))
            if head is not None:
                found.setdefault(head, row)
        return found

    def listed(self, key: str) -> list[Head]:
        """A list of heads, such as `removed`."""
        said = self.content.get(key)
        return [head for name in said if (head := parse(name))] if isinstance(said, list) else []


def by_model(runs: list[Run]) -> list[list[Run]]:
    """Runs of the same weights together (of the same name, where no fingerprint was kept), in the order given.

    A result that does not know its model belongs to the first one.
    """
    groups: dict[str, list[Run]] = {}
    keys = {run.model: run.fingerprint for run in runs if run.fingerprint}
    first = next((run.fingerprint or run.model for run in runs if run.model != NAMELESS), NAMELESS)
    for run in runs:
        key = run.fingerprint or keys.get(run.model) or run.model
        groups.setdefault(first if key == NAMELESS else key, []).append(run)
    return list(groups.values())


def model_name(runs: list[Run]) -> str:
    """What the runs call their model: the first that does."""
    return next((run.model for run in runs if run.model != NAMELESS), NAMELESS)


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def rows(value: Any) -> list[dict[str, Any]]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, (list, tuple)) else []


def number(value: Any) -> float | None:
    """A number that can be drawn, or None.

    >>> number(1), number("1"), number(float("nan"))
    (1.0, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if abs(value) < 1e100 else None  # not true of nan either
    except OverflowError:
        return None


def parse(name: Any) -> Head | None:
    try:
        return Head.parse(name)
    except HeadcountError:
        return None
