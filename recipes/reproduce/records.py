"""Finished parts, kept as small JSON files: what the page shows of them, without the models and runs behind it.

So the page can be computed part by part, on several machines and days. A record is taken where its command is the one
that would be run, on the same weights if the model is at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.reproduce.experiments import Experiment, Part
from recipes.reproduce.running import weights_of

from headcount.files import read_object, to_json, write_whole

LEFT_OUT = ("arguments", "directory", "path", "report", "removed")  # paths, and what the page does not show


@dataclass(frozen=True)
class Records:
    """The records in a directory; None has no records, and keeps none."""

    directory: Path | None

    def read(self, one: Experiment, part: Part, limit: int, at_hand: Experiment | None) -> dict[str, Any] | None:
        """The recorded run of a part, unless it is of another command, or of other weights than those at hand."""
        run = self.take(_name(one, part), _command(one, part, limit))
        model = None if run is None or at_hand is None else Path(part.model(at_hand))
        if run is None or model is None or not (model / "config.json").is_file():
            return run
        return run if run["signature"]["model"]["fingerprint"] == weights_of(str(model)) else None

    def keep(self, one: Experiment, part: Part, limit: int, run: dict[str, Any]) -> None:
        self.put(_name(one, part), _command(one, part, limit), run)

    def take(self, name: str, command: list[str]) -> dict[str, Any] | None:
        """The record of this name, if it is of this command."""
        found = None if self.directory is None else read_object(self.directory / f"{name}.json")
        return None if found is None or found["command"] != command else found["run"]

    def put(self, name: str, command: list[str], run: dict[str, Any]) -> None:
        if self.directory is not None:
            self.directory.mkdir(parents=True, exist_ok=True)
            content = {"command": command, "run": shortened(run)}
            write_whole(self.directory / f"{name}.json", to_json(content).encode())


def _name(one: Experiment, part: Part) -> str:
    return f"{one.name.lower().replace(' ', '-')}-{part.name}"


def _command(one: Experiment, part: Part, limit: int) -> list[str]:
    """The part's command, with files relative to the directories of models, data and runs."""
    made = part.model(one)  # by another part, if it is not the experiment's own model
    own = {made: "/".join(Path(made).parts[-2:])} if made != one.model else {}
    return shortened([*(own.get(word, word) for word in part.command(one)), "--limit", str(limit)])


def shortened(value: Any) -> Any:
    """A run without what only this machine has.

    >>> shortened({"score": 0.5, "removed": ["encoder.0.1"], "model": "/data/models/cola"})
    {'score': 0.5, 'model': 'cola'}
    """
    if isinstance(value, dict):
        return {key: shortened(item) for key, item in value.items() if key not in LEFT_OUT}
    if isinstance(value, list | tuple):
        return [shortened(item) for item in value]
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value
