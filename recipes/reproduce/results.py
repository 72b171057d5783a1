"""Everything that was computed, by experiment and part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from recipes.reproduce.experiments import Experiment
from recipes.reproduce.parts import Part


@dataclass
class Results:
    """`runs[experiment][part]` is a `run.json`; what is not there is in `missing`, in words."""

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    experiments: dict[str, Experiment] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    speed: dict[str, Any] | None = None

    def add_experiment(self, one: Experiment, found: bool) -> None:
        self.experiments[one.name] = one
        self.runs[one.name] = {}
        if not found:
            how = f" (made by `{one.recipe}`)" if one.recipe else ""
            self.missing.append(f"{one.name}: there is no model {one.model}{how}")

    def add(self, one: Experiment, part: Part, run: dict[str, Any] | None) -> None:
        if run is None:
            self.missing.append(f"{one.name}: not computed yet: {part.title}")
        else:
            self.runs[one.name][part.name] = run

    def of(self, part: str) -> dict[str, dict[str, Any]]:
        """The runs of one part, by experiment."""
        return {name: runs[part] for name, runs in self.runs.items() if part in runs}
