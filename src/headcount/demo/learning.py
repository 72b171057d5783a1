"""Training for the demos: the library's plain loop, with a loss to look at and epochs that can be kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from headcount.tasks import Task
from headcount.training import (
    Training,
    optimizer_tensors,
    read_tensors,
    set_optimizer,
    set_weights,
    under,
    weights_of,
    write_tensors,
)

Tell = Callable[[float, float], None]  # the share done, and the loss of late


class Learning(Training):
    """Make the task's own loss smaller."""

    def __init__(self, model: Any, task: Task, *, epochs: int, lr: float, tokens: int) -> None:
        groups = [{"params": [weight for weight in model.parameters() if weight.requires_grad], "lr": lr}]
        super().__init__(model, task, groups, epochs=epochs, tokens=tokens, seed=0, what="the demo's training")
        self.late = float("nan")

    def loss(self, step: int, batch: Any) -> Tensor:
        loss = self.task.losses(self.task.outputs(self.model, batch), batch).mean()
        now = float(loss.detach())
        self.late = now if math.isnan(self.late) else 0.9 * self.late + 0.1 * now
        return loss


def learn(
    model: Any,
    task: Task,
    *,
    epochs: int,
    lr: float,
    tokens: int,
    tell: Tell,
    after: Callable[[int], None] | None = None,
    state: Path | None = None,
) -> None:
    """Train a model in place.

    tokens: per batch. after: called with the number of each finished epoch, from 1 on.
    state: a directory that keeps the last finished epoch, so that the same call goes on from there to the same end.
    """
    training = Learning(model, task, epochs=epochs, lr=lr, tokens=tokens)
    done = _resume(training, state, epochs)
    for epoch in range(done, epochs):
        training.epoch(epoch, _part(tell, training, epoch / epochs, 1 / epochs))
        if after is not None:
            after(epoch + 1)
        if state is not None:
            kept = {f"m.{name}": tensor for name, tensor in weights_of(model).items()}
            kept |= {f"o.{name}": tensor for name, tensor in optimizer_tensors(training.optimizer).items()}
            write_tensors(state / f"epoch-{epoch + 1}.safetensors", kept)
            (state / f"epoch-{epoch}.safetensors").unlink(missing_ok=True)


def _part(tell: Tell, training: Learning, start: float, width: float) -> Callable[[float], None]:
    return lambda share: tell(start + share * width, training.late)


def _resume(training: Learning, state: Path | None, epochs: int) -> int:
    """Epochs that are finished already; model and optimizer are brought to where they were."""
    for epoch in range(epochs, 0, -1):
        if state is not None and (state / f"epoch-{epoch}.safetensors").exists():
            kept = read_tensors(state / f"epoch-{epoch}.safetensors")
            set_weights(training.model, under("m.", kept))
            set_optimizer(training.optimizer, under("o.", kept))
            return epoch
    return 0
