"""What gate training keeps after each epoch, so that it goes on where it was stopped, to the same result."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from headcount.errors import RunConflict
from headcount.files import read_object, write_whole
from headcount.gates.gate_training import Course, GateTraining, Snapshot
from headcount.gates.gated import Stage
from headcount.training import (
    optimizer_tensors,
    read_tensors,
    set_optimizer,
    set_weights,
    under,
    weights_of,
    write_tensors,
)


class GateState:
    """`gates.json` (finished stages, how the present one goes) and the tensors that belong to it."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.stages: list[Stage] = []
        self.epoch = 0  # of the stage under way, as are these
        self.course: Course | None = None
        self.useful: int | None = None
        self.tensors: dict[str, torch.Tensor] = {}
        content = None if directory is None else read_object(directory / "gates.json")
        if directory is not None and content is not None:
            try:
                self._take(content)
                file = _plain_name(content["file"])
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                raise RunConflict(f"{directory / 'gates.json'} makes no sense: {error!r}; begin a new run") from None
            self.tensors = read_tensors(directory / file)

    def _take(self, content: dict[str, Any]) -> None:
        self.stages = [_stage(one) for one in content["stages"]]
        self.epoch, self.useful = int(content["epoch"]), content["useful"] and int(content["useful"])
        self.course = None if content["course"] is None else Course(**content["course"])
        if self.course is not None:
            self.course.price = float(self.course.price)
            self.course.notes = _notes(self.course.notes)

    def resume(self, training: GateTraining) -> int:
        """Bring weights, gates and optimizer to where they were; the epochs of this stage that are done already."""
        if not self.tensors:
            return 0
        set_weights(training.model, under("m.", self.tensors))
        with torch.no_grad():
            training.gates.log_alpha.copy_(self._gates("gates", training))
        if self.course is not None:  # in the middle of a stage
            set_optimizer(training.optimizer, under("o.", self.tensors))
            training.course = self.course
            useful = under("s.", self.tensors)
            if self.useful is not None:
                log_alpha = self._gates("s.gates", training)
                useful.pop("gates")
                training.snapshot = Snapshot(self.useful, useful or weights_of(training.model), log_alpha)
        done, self.tensors = self.epoch, {}
        return done

    def _gates(self, name: str, training: GateTraining) -> torch.Tensor:
        kept = self.tensors.get(name)
        if kept is None or kept.shape != training.gates.log_alpha.shape:
            raise RunConflict(f"{self.directory}: what was kept there does not fit the gates; begin a new run")
        return kept

    def keep(self, training: GateTraining, epoch: int, finished: Stage | None = None) -> None:
        """After an epoch; `finished` when it was the last one of its stage."""
        if finished is not None:
            self.stages.append(finished)
        if self.directory is None:
            return
        state = {f"m.{name}": tensor for name, tensor in weights_of(training.model).items()}
        state["gates"] = training.gates.log_alpha.detach().clone()
        if finished is None:
            state |= {f"o.{name}": tensor for name, tensor in optimizer_tensors(training.optimizer).items()}
        snapshot = None if finished else training.snapshot
        if snapshot is not None:
            state["s.gates"] = snapshot.log_alpha
            if snapshot.step < epoch * len(training.batches):  # every gate has closed since
                state |= {f"s.{name}": tensor for name, tensor in snapshot.weights.items()}
        file = f"stage-{len(self.stages)}-epoch-{epoch}.safetensors"
        write_tensors(self.directory / file, state)
        content = {
            "stages": [asdict(stage) for stage in self.stages],
            "epoch": 0 if finished else epoch,
            "course": None if finished else asdict(training.course),
            "useful": snapshot and snapshot.step,
            "file": file,
        }
        write_whole(self.directory / "gates.json", json.dumps(content, indent=2).encode())
        for old in self.directory.glob("stage-*.safetensors"):
            if old.name != file:
                old.unlink()


def _stage(content: dict[str, Any]) -> Stage:
    """A finished stage as it was written; numbers that are none are refused here, not where they are printed."""
    numbers = {name: float(content[name]) for name in ("price", "score", "change", "low", "high", "decided")}
    removed, target = tuple(map(str, content["removed"])), content["target"] and int(content["target"])
    back = content["went_back_to"] and int(content["went_back_to"])
    kept = {"removed": removed, "target": target, "went_back_to": back, "notes": tuple(_notes(content["notes"]))}
    counted = {name: {str(key): int(n) for key, n in content[name].items()} for name in ("left_by_site",)}
    return Stage(**{**content, **numbers, **kept, **counted})  # type: ignore[arg-type]


def _notes(notes: Any) -> list[dict[str, float]]:
    return [{str(key): float(value) for key, value in note.items()} for note in notes]


def _plain_name(name: Any) -> str:
    """A file in the same directory and nowhere else."""
    if not isinstance(name, str) or not name or Path(name).name != name or "\0" in name:
        raise ValueError(f"{name!r} is no file beside it")
    return name
