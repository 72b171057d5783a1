"""Recovery: fine-tune a pruned model for a few epochs, and keep the best of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headcount.errors import HeadcountError
from headcount.evaluation import evaluate
from headcount.runs import fingerprint
from headcount.tasks import Task
from headcount.training.checkpoint import RecoveryState
from headcount.training.loop import Progress, Training


@dataclass(frozen=True)
class Recovery:
    """How to fine-tune.

    epochs: at most so many. lr: at its height, after a tenth of the steps; it falls to 0 at the end.
    tokens: per batch, padding included. distill: share of the loss that asks for the whole model's own predictions
    instead of the labels. temperature: of both models' predictions then. seed: of the order of batches and of dropout.
    """

    epochs: int
    lr: float = 5e-5
    tokens: int = 1024
    distill: float = 0.0
    temperature: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.lr <= 0 or self.tokens < 1 or not 0 <= self.distill <= 1 or self.temperature <= 0:
            raise HeadcountError(f"these are no settings to recover with: {self}")


def recover(
    pruned: Any,
    task: Task,
    select_task: Task,
    settings: Recovery,
    *,
    whole: nn.Module | None = None,
    directory: str | Path | None = None,
    progress: Progress | None = None,
) -> list[float]:
    """Fine-tune a pruned model in place; it ends as the best of the epochs, the beginning included.

    task: to train on. select_task: to tell which epoch is best on. whole: the teacher, if `settings.distill` > 0.
    directory: keeps the state after each epoch, so that the same call goes on where it was stopped, to the same result.
    Returns the metric on `select_task` before and after each epoch.
    """
    if settings.distill and whole is None:
        raise HeadcountError("distillation needs the whole model to learn from: pass whole=…")
    trainer = Recovering(pruned, task, settings, whole)
    better = max if select_task.metric.higher_is_better else min
    signature = {"settings": asdict(settings), "start": fingerprint(pruned), "task": task.signature()}
    state = RecoveryState(directory, pruned, trainer.optimizer, signature)
    scores = state.resume()
    if not scores:
        scores = [evaluate(pruned, select_task).score()]
        state.keep(scores, best=True)
    for epoch in range(len(scores) - 1, settings.epochs):
        trainer.epoch(epoch, _part(progress, epoch, settings.epochs))
        scores.append(evaluate(pruned, select_task).score())
        state.keep(scores, best=better(scores) == scores[-1] and scores.count(scores[-1]) == 1)
    state.restore_best()
    pruned.eval()
    return scores


class Recovering(Training):
    """Towards the labels, the whole model's predictions, or some of both."""

    def __init__(self, model: Any, task: Task, settings: Recovery, whole: nn.Module | None) -> None:
        groups = [{"params": list(model.parameters()), "lr": settings.lr}]
        super().__init__(
            model, task, groups, epochs=settings.epochs, tokens=settings.tokens, seed=settings.seed, what="the recovery"
        )
        self.settings, self.whole = settings, whole

    def loss(self, step: int, batch: Any) -> Tensor:
        outputs = self.task.outputs(self.model, batch)
        loss = (1 - self.settings.distill) * self.task.losses(outputs, batch).mean()
        if self.settings.distill and self.whole is not None:
            loss = loss + self.settings.distill * self._distance(outputs, batch)
        return loss

    def _distance(self, outputs: Tensor, batch: Any) -> Tensor:
        """KL divergence from the whole model's softened predictions (Hinton et al. 2015)."""
        assert self.whole is not None
        with torch.no_grad():
            wanted = self.task.outputs(self.whole.eval(), batch)
        if outputs.ndim == 3 and batch.labels is not None:  # only where a token is predicted
            there = batch.labels != -100
            outputs, wanted = outputs[there], wanted[there]
        heat = self.settings.temperature
        ours, theirs = F.log_softmax(outputs.float() / heat, -1), F.log_softmax(wanted.float() / heat, -1)
        return F.kl_div(ours, theirs, reduction="batchmean", log_target=True) * heat**2


def _part(progress: Progress | None, place: int, of: int) -> Progress:
    return lambda share: None if progress is None else progress((place + share) / of)
