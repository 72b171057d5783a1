"""What a recovery keeps after each epoch, so that it can go on where it was stopped, to the same result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headcount.errors import RunConflict
from headcount.files import read_object, write_whole
from headcount.training.loop import (
    optimizer_tensors,
    read_tensors,
    set_optimizer,
    set_weights,
    under,
    weights_of,
    write_tensors,
)


class RecoveryState:
    """The model and optimizer after the last epoch, and the best model so far: in memory, and in a directory if any."""

    def __init__(
        self,
        directory: str | Path | None,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        signature: dict[str, Any],
    ) -> None:
        self.directory = None if directory is None else Path(directory)
        self.model, self.optimizer = model, optimizer
        self.best: dict[str, Tensor] = {}
        self.signature = json.loads(json.dumps(signature, default=str))

    def resume(self) -> list[float]:
        """The scores so far; model and optimizer are brought to where they were."""
        content = None if self.directory is None else read_object(self.directory / "recovery.json")
        if self.directory is None or content is None:
            return []
        if content.get("signature") != self.signature:
            raise RunConflict(f"{self.directory} holds the recovery of something else; choose another directory")
        scores = content.get("scores")
        if not isinstance(scores, list) or not scores or not all(isinstance(score, float) for score in scores):
            raise RunConflict(f"{self.directory / 'recovery.json'} holds no scores; begin a new run")
        state = read_tensors(self.directory / f"epoch-{len(scores) - 1}.safetensors")
        set_weights(self.model, under("m.", state))
        set_optimizer(self.optimizer, under("o.", state))
        self.best = read_tensors(self.directory / "best.safetensors")
        return scores

    def keep(self, scores: list[float], best: bool) -> None:
        model = weights_of(self.model)
        if best:
            self.best = model
        if self.directory is None:
            return
        epoch = len(scores) - 1
        state = {f"m.{name}": tensor for name, tensor in model.items()}
        state |= {f"o.{name}": tensor for name, tensor in optimizer_tensors(self.optimizer).items()}
        write_tensors(self.directory / f"epoch-{epoch}.safetensors", state)
        if best:
            write_tensors(self.directory / "best.safetensors", model)
        content = {"signature": self.signature, "scores": scores}
        write_whole(self.directory / "recovery.json", json.dumps(content, indent=2).encode())
        (self.directory / f"epoch-{epoch - 1}.safetensors").unlink(missing_ok=True)

    def restore_best(self) -> None:
        set_weights(self.model, self.best)
