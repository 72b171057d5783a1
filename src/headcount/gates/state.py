"""What gate training keeps after each epoch, so that it goes on where it was stopped, to the same result."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from headcount.engine.rundir import write_whole
from headcount.gates.gating import Course, GateTraining, Snapshot
from headcount.gates.result import Stage
from headcount.pruning.training import (
    optimizer_tensors,
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
        self.epoch, self.course, self.useful = 0, None, None  # of the stage under way
        self.tensors: dict[str, torch.Tensor] = {}
        if directory is not None and (directory / "gates.json").exists():
            content: dict[str, Any] = json.loads((directory / "gates.json").read_text(encoding="utf-8"))
            self.stages = [_stage(one) for one in content["stages"]]
            self.epoch, self.course, self.useful = content["epoch"], content["course"], content["useful"]
            self.tensors = load_file(directory / content["file"])

    def resume(self, training: GateTraining) -> int:
        """Bring weights, gates and optimizer to where they were; the epochs of this stage that are done already."""
        if not self.tensors:
            return 0
        set_weights(training.model, under("m.", self.tensors))
        with torch.no_grad():
            training.gates.log_alpha.copy_(self.tensors["gates"])
        if self.course is not None:  # in the middle of a stage
            set_optimizer(training.optimizer, under("o.", self.tensors))
            training.course = Course(**self.course)
            useful = under("s.", self.tensors)
            if self.useful is not None:
                log_alpha = useful.pop("gates")
                training.snapshot = Snapshot(self.useful, useful or weights_of(training.model), log_alpha)
        done, self.tensors = self.epoch, {}
        return done

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
    return Stage(**{**content, "removed": tuple(content["removed"]), "notes": tuple(content["notes"])})
