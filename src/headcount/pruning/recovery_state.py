"""What a recovery keeps after each epoch, so that it can go on where it was stopped, to the same result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from headcount.engine.rundir import write_whole
from headcount.errors import RunConflict


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
        if self.directory is None or not (self.directory / "recovery.json").exists():
            return []
        content = json.loads((self.directory / "recovery.json").read_text(encoding="utf-8"))
        if content.get("signature") != self.signature:
            raise RunConflict(f"{self.directory} holds the recovery of something else; choose another directory")
        scores = content["scores"]
        state = load_file(self.directory / f"epoch-{len(scores) - 1}.safetensors")
        self._load(self.model, {n[2:]: t for n, t in state.items() if n.startswith("m.")})
        self._load_optimizer({n[2:]: t for n, t in state.items() if n.startswith("o.")})
        self.best = load_file(self.directory / "best.safetensors")
        return scores

    def keep(self, scores: list[float], best: bool) -> None:
        model = {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
        if best:
            self.best = model
        if self.directory is None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        epoch = len(scores) - 1
        state = {f"m.{name}": tensor for name, tensor in model.items()} | self._optimizer_tensors()
        _write(self.directory / f"epoch-{epoch}.safetensors", state)
        if best:
            _write(self.directory / "best.safetensors", model)
        content = {"signature": self.signature, "scores": scores}
        write_whole(self.directory / "recovery.json", json.dumps(content, indent=2).encode())
        (self.directory / f"epoch-{epoch - 1}.safetensors").unlink(missing_ok=True)

    def restore_best(self) -> None:
        self._load(self.model, self.best)

    @staticmethod
    def _load(model: nn.Module, tensors: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                tensor.copy_(tensors[name])

    def _optimizer_tensors(self) -> dict[str, Tensor]:
        found = {}
        for number, state in self.optimizer.state_dict()["state"].items():
            for name, value in state.items():
                found[f"o.{number}.{name}"] = torch.as_tensor(value).detach().clone()
        return found

    def _load_optimizer(self, tensors: dict[str, Tensor]) -> None:
        content = self.optimizer.state_dict()
        for key, value in tensors.items():
            number, _, name = key.partition(".")
            content["state"].setdefault(int(number), {})[name] = value
        self.optimizer.load_state_dict(content)


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    """Whole or not at all; tensors that share memory (tied embeddings) are written once each."""
    partial = path.with_suffix(".partial")
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, partial)
    partial.replace(path)
