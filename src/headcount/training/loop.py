"""The training loop, from old weights or new ones: AdamW, warm-up and decay, every epoch repeatable to the last bit."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headcount.engine import batches_by_length, fast_products
from headcount.errors import HeadcountError
from headcount.runs import fingerprint
from headcount.structure import device_of, initialize_anew
from headcount.tasks import Batch, Task
from headcount.training.checkpoint import Checkpointer

Progress = Callable[[float, float], object]  # the share done, and the running loss

WARMUP = 0.1  # share of the steps in which the learning rate rises
DECAY = 0.01  # AdamW's weight decay, unless a group of parameters has its own
SMOOTHING = 0.9  # of the running loss


def fit(
    model: Any,
    task: Task,
    *,
    epochs: int,
    lr: float,
    tokens: int,
    seed: int = 0,
    progress: Progress | None = None,
    after_epoch: Callable[[int], object] | None = None,
    directory: str | Path | None = None,
) -> None:
    """Train a model in place on a task's own loss; parameters that require no gradient stay as they are.

    >>> from headcount.tasks import Classification
    >>> from headcount.tasks.text import word_tokenizer
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> tokenizer = word_tokenizer("good bad film")
    >>> size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> model = BertForSequenceClassification(BertConfig(**size, vocab_size=len(tokenizer)))
    >>> task = Classification([{"text": "good film", "label": 1}, {"text": "bad film", "label": 0}], tokenizer)
    >>> fit(model, task, epochs=2, lr=1e-3, tokens=64, after_epoch=print)
    1
    2

    lr: the peak; it rises over the first tenth of the steps and then falls to 0. tokens: per batch, with padding.
    seed: of the order of batches and of dropout. progress: called with the share done and the running loss.
    after_epoch: called with the number of each finished epoch, from 1 on.
    directory: keeps a checkpoint after each epoch; the same call then resumes, and ends in the same weights.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    batches = batches_by_length(task.lengths, tokens)
    signature = {"epochs": epochs, "lr": lr, "tokens": tokens, "seed": seed, "task": task.signature()}
    if directory is not None:
        signature["start"] = fingerprint(model)
    training = Training(model, task, [{"params": weights, "lr": lr}], batches=batches, epochs=epochs, seed=seed)
    checkpoint = Checkpointer(directory, signature=signature)
    done = checkpoint.read(lambda state: _finished(state["epoch"], epochs))
    if done is not None:
        checkpoint.restore(model, training.optimizer)

    def finished(epoch: int) -> None:
        if after_epoch is not None:
            after_epoch(epoch)
        checkpoint.keep({"epoch": epoch}, model, training.optimizer)

    training.run(done or 0, finished, progress)


class Training:
    """AdamW over a task's batches; the randomness of an epoch comes from the seed and its number alone.

    The loss is the task's own, averaged over the examples of a batch; a subclass can define another one, other
    batches (`plan`), another schedule (`rate`), and what happens after a step.

    groups: of parameters, as torch takes them, each with its peak `lr`; one with `"steady": True` stays there.
    batches: the examples of each batch. what: names this training in errors.
    """

    def __init__(
        self,
        model: Any,
        task: Task,
        groups: Sequence[dict[str, Any]],
        *,
        batches: Sequence[Sequence[int]],
        epochs: int,
        seed: int,
        what: str = "the training",
    ) -> None:
        self.model, self.task, self.seed, self.what = model, task, seed, what
        self.device = device_of(model)
        self.batches, self.epochs = batches, epochs
        self.steps = epochs * len(batches)
        self.optimizer = torch.optim.AdamW([{"weight_decay": DECAY, **group} for group in groups])
        self.peaks = [group["lr"] for group in groups]
        self.running_loss = math.nan

    def run(self, begin: int, after_epoch: Callable[[int], object], progress: Progress | None = None) -> None:
        """Train from an epoch to the last one; `begin` epochs are done already."""
        for number in range(begin, self.epochs):
            self.epoch(number, progress)
            after_epoch(number + 1)

    def epoch(self, number: int, progress: Progress | None = None) -> None:
        """All batches once, in an order of this epoch's own; epochs count from 0."""
        plan = self.plan(number)
        self.model.train()
        with torch.random.fork_rng(devices=[]), fast_products():
            torch.manual_seed(self.seed * 1_000_003 + number)
            for step, indices in enumerate(plan, start=number * len(plan)):
                self.step(step, self.task.batch(indices).to(self.device))
                if progress is not None:
                    progress((step + 1) / self.steps, self.running_loss)
        self.model.eval()

    def plan(self, epoch: int) -> list[Sequence[int]]:
        """The batches of an epoch, in its order."""
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.batches))
        return [self.batches[index] for index in order]

    def step(self, number: int, batch: Batch) -> None:
        """One update of the weights; steps count from 0."""
        share = self.rate(number)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak if group.get("steady") else peak * share
        loss = self.loss(number, batch)
        value = float(loss.detach())
        if not math.isfinite(value):
            message = f"the loss is not finite at step {number + 1} of {self.what}"
            raise HeadcountError(message, advice="try a smaller {lr}")
        before = self.running_loss
        self.running_loss = value if math.isnan(before) else SMOOTHING * before + (1 - SMOOTHING) * value
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.after_step(number)

    def rate(self, step: int) -> float:
        """The learning rate at a step, as a share of its peak."""
        warm = max(1.0, WARMUP * self.steps)
        return max(0.0, min((step + 1) / warm, (self.steps - step) / max(1.0, self.steps - warm)))

    def loss(self, step: int, batch: Batch) -> Tensor:
        """What is minimised: the mean over examples of the task's loss."""
        return self.task.losses(self.task.outputs(self.model, batch), batch).mean()

    def after_step(self, step: int) -> None:
        """Called after each step."""


def fresh_copy(model: Any, seed: int = 0) -> Any:
    """A model of the same layout, with the same heads removed, and newly initialised weights.

    >>> from transformers import BertConfig, BertModel
    >>> small = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8))
    >>> fresh = fresh_copy(small)
    >>> bool((fresh.embeddings.word_embeddings.weight == small.embeddings.word_embeddings.weight).all())
    False
    """
    if not hasattr(model, "init_weights"):
        raise HeadcountError(f"{type(model).__name__} is not a transformers model: it cannot initialise its weights")
    fresh = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        initialize_anew(fresh)
    return fresh


def _finished(epoch: Any, epochs: int) -> int:
    """The number of finished epochs that a checkpoint tells."""
    if not isinstance(epoch, int) or not 1 <= epoch <= epochs:
        raise ValueError(f"epoch {epoch!r} of {epochs}")
    return epoch
