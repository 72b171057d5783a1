"""What the runs of a model say about its heads, as the page reads it: maps to colour by, and sets to turn off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headcount.errors import HeadcountError
from headcount.reporting import ModelRuns, RunRecord, number, read_result
from headcount.runs import fingerprint
from headcount.structure import Anatomy, whole_anatomy


class Findings:
    """Colourings, sets of units and lines about each head, from runs of one model.

    >>> from headcount.tasks.classification import toy_classifier
    >>> row = {"head": "encoder.0.1", "score": 0.5}
    >>> told = Findings(toy_classifier()[0], [{"command": "importance", "method": "gradient", "heads": [row]}])
    >>> told.to_json()["maps"][0]["values"]
    {'encoder.0.1': 0.5}

    runs: run directories, or what headcount's functions return and `--json` prints.
    """

    def __init__(self, model: Any, runs: Iterable[Any]) -> None:
        self.found = whole_anatomy(model)
        self.runs = [read_result(run) for run in runs]
        self.heads = {str(head) for head in self.found.heads if not head.is_neuron}
        own = fingerprint(model) if self.runs else ""
        self.remarks = [
            f"{run.directory or run.command} was measured on other weights than this model's"
            for run in self.runs
            if run.fingerprint not in (None, own)
        ]

    def to_json(self) -> dict[str, Any]:
        facts = ModelRuns(self.runs).facts
        return {
            "maps": [one for run in self.runs for one in self._map(run)],
            "sets": self.sets(),
            "facts": {str(head): lines for head, lines in facts.items() if str(head) in self.heads and lines},
            "remarks": self.remarks,
        }

    def sets(self) -> list[dict[str, Any]]:
        """Units that can be turned off together: by role, and what was removed."""
        found = []
        for run in self.runs:
            by_role: dict[str, list[str]] = {}
            for row in run.rows("heads") if run.command == "roles" else ():
                if row.get("head") in self.heads and isinstance(row.get("role"), str):
                    by_role.setdefault(row["role"], []).append(row["head"])
            found += [{"name": f"{role} heads", "units": _once(units)} for role, units in by_role.items()]
            removed = self._there(run.texts("removed")) if run.command in ("prune", "gates") else []
            if removed:
                found.append({"name": f"what {run.command} removed", "units": removed})
        return found

    def orders(self) -> list[dict[str, Any]]:
        """Heads from the least important on, by every importance run."""
        return [one for run in self.runs for one in self._map(run) if "order" in one]

    def pruned(self) -> Path | None:
        """The directory of the first pruned model that a run has saved and that is still there."""
        cuts = ModelRuns(self.runs).cuts
        places = [Path(place) for run in cuts for place in (run.text("path"), f"{run.directory}/model") if place]
        return next((place for place in places if (place / "config.json").is_file()), None)

    def _there(self, units: Iterable[str]) -> list[str]:
        """Those of the units that this model has."""
        return [unit for unit in units if _exists(self.found, unit)]

    def _map(self, run: RunRecord) -> list[dict[str, Any]]:
        """What a run gives to colour heads by."""
        if run.command == "roles":
            roles = {row["head"]: row["role"] for row in reversed(run.rows("heads")) if row.get("head") in self.heads}
            return [{"name": "role", "kind": "role", "values": roles}] if roles else []
        if run.command == "importance":
            key = "normalized" if run.text("order_by") == "normalized" else "score"
            order = [str(head) for head in run.listed("order") if str(head) in self.heads]
            name = f"importance ({run.text('method')})"
            return self._valued(run, key, {"name": name, "kind": "importance", "order": order})
        if run.command == "ablate":
            name = f"change of {run.metric.name} on {run.data()}"
            return self._valued(run, "change", {"name": name, "kind": "change", "sign": run.metric.sign})
        return []

    def _valued(self, run: RunRecord, key: str, told: Mapping[str, Any]) -> list[dict[str, Any]]:
        values = {str(head): number(row.get(key)) for head, row in run.heads.items() if str(head) in self.heads}
        known = {head: value for head, value in values.items() if value is not None}
        return [{**told, "values": known}] if known else []


def _exists(found: Anatomy, unit: str) -> bool:
    try:
        found.check([unit])
    except HeadcountError:
        return False
    return True


def _once(units: list[str]) -> list[str]:
    return list(dict.fromkeys(units))
