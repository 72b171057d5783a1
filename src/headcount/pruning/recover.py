"""Recovery: fine-tune a pruned model for a few epochs, and keep the best of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headcount.errors import HeadcountError
from headcount.evaluate import evaluate
from headcount.evaluate.batches import batches_by_length
from headcount.pruning.recovery_state import RecoveryState
from headcount.signature import fingerprint
from headcount.tasks import Task

Progress = Callable[[float], None]


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
    trainer = _Trainer(pruned, task, settings, whole)
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


class _Trainer:
    """AdamW with warm-up and linear decay; every epoch's randomness comes from the seed and its number alone."""

    def __init__(self, model: Any, task: Task, settings: Recovery, whole: nn.Module | None) -> None:
        self.model, self.task, self.settings, self.whole = model, task, settings, whole
        self.device = next(model.parameters()).device
        self.batches = batches_by_length(task.lengths, settings.tokens)
        self.steps = settings.epochs * len(self.batches)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, weight_decay=0.01)

    def epoch(self, number: int, progress: Progress) -> None:
        order = np.random.default_rng([self.settings.seed, number]).permutation(len(self.batches))
        self.model.train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed * 1_000_003 + number)
            for place, index in enumerate(order):
                self._step(number * len(order) + place, self.task.batch(self.batches[index]).to(self.device))
                progress((place + 1) / len(order))
        self.model.eval()

    def _step(self, step: int, batch: Any) -> None:
        warm = max(1.0, 0.1 * self.steps)
        share = min((step + 1) / warm, (self.steps - step) / max(1.0, self.steps - warm))
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.lr * max(0.0, share)
        outputs = self.task.outputs(self.model, batch)
        loss = (1 - self.settings.distill) * self.task.losses(outputs, batch).mean()
        if self.settings.distill and self.whole is not None:
            loss = loss + self.settings.distill * self._distance(outputs, batch)
        if not math.isfinite(float(loss.detach())):
            raise HeadcountError(f"the loss is not finite at step {step + 1} of the recovery; try a smaller --lr")
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

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
