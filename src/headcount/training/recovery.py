"""Recovery: fine-tune a pruned model for a few epochs, and keep the best of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headcount.engine import batches_by_length
from headcount.errors import HeadcountError
from headcount.evaluation import evaluate
from headcount.runs import fingerprint
from headcount.tasks import Batch, Task
from headcount.training.checkpoint import Checkpointer, set_weights, weights_of
from headcount.training.loop import Training, refuse_settings


@dataclass(frozen=True)
class Recovery:
    """How to fine-tune.

    epochs: at most this many. lr: the peak; it rises over the first tenth of the steps and then falls to 0.
    tokens: per batch, with padding. distill: share of the loss that asks for the whole model's own predictions
    instead of the labels. temperature: of both models' predictions then. seed: of the order of batches and of dropout.
    """

    epochs: int
    lr: float = 5e-5
    tokens: int = 1024
    distill: float = 0.0
    temperature: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        wanted = {
            "epochs": (self.epochs >= 1, "at least 1"),
            "lr": (self.lr > 0, "above 0"),
            "tokens": (self.tokens >= 1, "at least 1"),
            "distill": (0 <= self.distill <= 1, "a share from 0 to 1"),
            "temperature": (self.temperature > 0, "above 0"),
        }
        refuse_settings(self, wanted)


def recover(
    pruned: Any,
    task: Task,
    select_task: Task,
    settings: Recovery,
    *,
    whole: nn.Module | None = None,
    directory: str | Path | None = None,
    progress: Any = None,
) -> list[float]:
    """Fine-tune a pruned model in place; it ends as the best of the epochs, the starting point included.

    task: to train on. select_task: to choose the best epoch on. whole: the teacher, if `settings.distill` > 0.
    directory: keeps a checkpoint after each epoch; the same call then resumes, and ends in the same weights.
    progress: called with the share done. Returns the metric on `select_task` before and after each epoch.
    """
    if settings.distill and whole is None:
        raise HeadcountError("distillation needs the whole model as its teacher", advice="pass {whole}")
    training = Recovering(pruned, task, settings, whole)
    better = max if select_task.metric.higher_is_better else min
    signature = {"settings": asdict(settings), "start": fingerprint(pruned), "task": task.signature()}
    checkpoint = Checkpointer(directory, "recovery", signature)
    scores = checkpoint.read(lambda state: _scores(state["scores"], settings.epochs)) or []
    if scores:
        best = checkpoint.restore(pruned, training.optimizer).copies.get("best") or weights_of(pruned)
    else:
        best = weights_of(pruned)
        scores.append(evaluate(pruned, select_task).score())
        checkpoint.keep({"scores": scores}, pruned, training.optimizer, copies={"best": best})

    def finished(epoch: int) -> None:
        nonlocal best
        scores.append(evaluate(pruned, select_task).score())
        if better(scores) == scores[-1] and scores.count(scores[-1]) == 1:
            best = weights_of(pruned)
        checkpoint.keep({"scores": scores}, pruned, training.optimizer, copies={"best": best})

    training.run(len(scores) - 1, finished, lambda share, loss: None if progress is None else progress(share))
    set_weights(pruned, best)
    pruned.eval()
    return scores


class Recovering(Training):
    """Towards the labels, the whole model's predictions, or some of both."""

    def __init__(self, model: Any, task: Task, settings: Recovery, whole: nn.Module | None) -> None:
        groups = [{"params": list(model.parameters()), "lr": settings.lr}]
        batches = batches_by_length(task.lengths, settings.tokens)
        super().__init__(
            model, task, groups, batches=batches, epochs=settings.epochs, seed=settings.seed, what="the recovery"
        )
        self.settings, self.whole = settings, whole

    def loss(self, step: int, batch: Batch) -> Tensor:
        outputs = self.task.outputs(self.model, batch)
        loss = (1 - self.settings.distill) * self.task.losses(outputs, batch).mean()
        if self.settings.distill and self.whole is not None:
            loss = loss + self.settings.distill * self._distance(outputs, batch)
        return loss

    def _distance(self, outputs: Tensor, batch: Batch) -> Tensor:
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


def _scores(scores: Any, epochs: int) -> list[float]:
    """The scores that a checkpoint tells: one before the first epoch, and one after each."""
    if not 1 <= len(scores) <= epochs + 1 or not all(isinstance(score, float) for score in scores):
        raise ValueError(f"scores {scores!r}")
    return list(scores)
