"""`unlabeled`: a task whose reference is the original model itself, for data without labels.

The loss of an example is the Kullback-Leibler divergence of a model's predictions from the original's; of embeddings
one minus their cosine, of regressions the squared difference. At the original model all of these are 0, and so are
their gradients. Importance is about what happens next to it, which is their curvature: the Fisher information,
E_y (d log p(y) / d xi)² for y drawn from the original's own predictions (Martens 2014). `score_losses` are -log p(y) of
such y, whose squared gradients have that mean.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headcount.errors import HeadcountError
from headcount.errors import counted as count_of
from headcount.runs import model_signature
from headcount.structure import device_of
from headcount.tasks.metrics import UNLABELED, Metric, pick
from headcount.tasks.task import BaseTask, Batch, digest
from headcount.tasks.translation import Generation

TOLD_APART = 1024  # outputs that are kept one by one; of more, as of a vocabulary, the likeliest
LIKELIEST = 128  # of these; all others count as one outcome
TOKENS = 2048  # per batch, padding included


def unlabeled(task: Any, model: Any, metric: str | None = None) -> Unlabeled:
    """The same examples without their labels: how close does a model stay to this one?

    >>> from headcount.tasks.classification import toy_classifier
    >>> model, task = toy_classifier()
    >>> alone = unlabeled(task, model)
    >>> batch = alone.batch([0, 1])
    >>> alone.metric.name, alone.losses(alone.outputs(model, batch), batch).abs().max().item() < 1e-6
    ('agreement', True)

    model: the original, whose predictions are kept; the model itself is not.
    metric: "agreement", the share of predictions that stay; "divergence"; or a metric of the task itself, with the
        original's own output as the reference. By default agreement; for embeddings "cosine", for numbers "divergence",
        and for generated texts the task's own metric.
    """
    if not isinstance(task, BaseTask):
        raise HeadcountError(f"expected one of headcount's tasks or a subclass of BaseTask, not {type(task).__name__}")
    task.check(model)
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            if isinstance(task, Generation):  # predictions of its tokens are those of its own text
                known: BaseTask = task.relabeled(_written(task, model))
                reference = OriginalPredictions.of(known, model)
            else:
                reference = OriginalPredictions.of(task, model)
                known = reference.task = task.relabeled(reference.decided)
    finally:
        model.train(training)
    return Unlabeled(known, reference, _metric(known, metric), {"reference": model_signature(model)})


def _metric(task: BaseTask, name: str | None) -> Metric:
    special = dict(UNLABELED)
    if task.compares != "distributions":
        special.pop("agreement")
    if task.compares != "vectors":
        special.pop("cosine")
    if name is None:
        default = {"distributions": "agreement", "vectors": "cosine", "numbers": "divergence"}[task.compares]
        name = task.metric.name if isinstance(task, Generation) else default
    own = {} if name in special else {task.metric.name: task.metric}
    return pick({**special, **own}, name)


class Unlabeled:
    """A task with the original model as its reference; whatever else is asked of it, the task itself answers."""

    def __init__(
        self, task: BaseTask, reference: OriginalPredictions, metric: Metric, settings: dict[str, Any]
    ) -> None:
        self.task, self.reference, self.metric, self.settings = task, reference, metric, settings
        self.own = metric.name not in UNLABELED  # a metric of the task itself
        self.generates = isinstance(task, Generation) and metric.name not in ("divergence", "loss", "perplexity")
        self.drafts = self.generates and getattr(task, "beams", 1) == 1

    def __getattr__(self, name: str) -> Any:
        if name in ("task", "labels") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.task, name)

    def __len__(self) -> int:
        return len(self.task)

    def __repr__(self) -> str:
        return f"<Unlabeled {type(self.task).__name__}: {count_of(len(self), 'example')}, {self.metric.name}>"

    def batch(self, indices: Sequence[int]) -> Batch:
        return self.task.batch(indices)

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        return self.task.outputs(model, batch)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(B,) mean divergence of an example's predictions from the original's."""
        each, owner = self.reference.divergences(outputs, batch)
        return _by_example(each, owner, len(batch)) / _by_example(torch.ones_like(each), owner, len(batch))

    def score_losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(B,) losses whose squared gradients at the original are, in the mean, the curvature of `losses`."""
        each, owner = self.reference.drawn_losses(outputs, batch)
        return _by_example(each, owner, len(batch)) / _by_example(torch.ones_like(each), owner, len(batch)).sqrt()

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        """[predictions, those that stay (or their cosine), their divergence], or the task's own."""
        if self.own:
            return self.task.statistics(outputs, batch)
        if self.generates:  # the texts
            assert isinstance(self.task, Generation)
            assert self.task.labels is not None
            same = [_trimmed(row, self.task) == self.task.labels[i]
                    for i, row in zip(batch.indices, outputs.tolist(), strict=True)]  # fmt: skip
            return self.task.columns(batch, torch.ones(len(batch)), torch.tensor(same), torch.zeros(len(batch)))
        each, owner = self.reference.divergences(outputs, batch)
        count = _by_example(torch.ones_like(each), owner, len(batch))
        stays, ours = self.reference.stays(outputs, batch)
        if len(stays) != len(each):  # one decision by several predictions, as a span is
            return self.task.columns(batch, torch.ones_like(count), _by_example(stays, ours, len(batch)),
                                     _by_example(each, owner, len(batch)) / count)  # fmt: skip
        return self.task.columns(batch, count, _by_example(stays, owner, len(batch)),
                                 _by_example(each, owner, len(batch)))  # fmt: skip

    def decode(self, model: Any, batch: Batch) -> Tensor:
        return self.task.decode(model, batch)

    def check(self, model: Any) -> list[str]:
        return self.task.check(model)

    def signature(self) -> dict[str, Any]:
        settings = {"labels": "none", **self.settings, "metric_signature": self.metric.signature}
        return {**self.task.signature(), "metric": self.metric.name, **settings}

    def subset(self, indices: Sequence[int]) -> Unlabeled:
        part = copy.copy(self)
        part.task = self.task.subset(indices)
        part.reference = self.reference.subset(part.task, indices)
        return part

    def keys(self) -> list[str]:
        return self.task.keys()


@dataclass
class OriginalPredictions:
    """What the original model predicts for each example, one row for each of its predictions.

    rows: per example (n, D): log probabilities, vectors or numbers. outcomes: per example (n, D) which outputs the log
        probabilities are of, if not of all; the last is of all others together. decided: per example what the original
        decides, (n,) or fewer. drawn: per example (n,) one outcome, drawn from the original's own prediction.
    """

    task: BaseTask
    rows: list[Tensor]
    outcomes: list[Tensor] | None
    decided: list[list[Any]]
    drawn: list[Tensor]

    @classmethod
    def of(cls, task: BaseTask, model: Any) -> OriginalPredictions:
        device, found = device_of(model), {}
        for indices in _batches(task.lengths):
            batch = task.batch(indices).to(device)
            outputs = task.outputs(model, batch)
            predicted, owner = counted(outputs, batch)
            decisions, of = _decisions(task, outputs, batch)
            for place, index in enumerate(indices):
                decided = decisions[of == place].tolist()
                found[index] = (*_kept(task, predicted[owner == place], task.content[index]), decided)
        ordered = [found[i] for i in range(len(task))]
        partly = any(one[1] is not None for one in ordered)
        outcomes: Any = [one[1] for one in ordered] if partly else None
        return cls(
            task, [one[0] for one in ordered], outcomes, [one[3] for one in ordered], [one[2] for one in ordered]
        )

    def subset(self, task: BaseTask, indices: Sequence[int]) -> OriginalPredictions:
        def some(values: Any) -> Any:
            return [values[i] for i in indices]

        outcomes = None if self.outcomes is None else some(self.outcomes)
        return OriginalPredictions(task, some(self.rows), outcomes, some(self.decided), some(self.drawn))

    def divergences(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """How far each prediction is from the original's, and which example of the batch it belongs to: (P,), (P,)"""
        ours, owner = counted(outputs, batch)  # (P, D)
        theirs = self._stacked(self.rows, batch, ours)
        if self.task.compares == "numbers":
            return (ours - theirs).square().sum(-1), owner
        if self.task.compares == "vectors":
            return 1 - (ours * theirs).sum(-1), owner
        found = F.log_softmax(ours, dim=-1)
        if self.outcomes is not None:
            found = _merged(found, self._stacked(self.outcomes, batch, ours)[:, :-1])
        probabilities = theirs.exp()
        return torch.where(probabilities > 0, probabilities * (theirs - found), 0.0).sum(-1).clamp(min=0), owner

    def drawn_losses(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """-log p of each prediction's drawn outcome; of vectors and numbers their product with a drawn direction."""
        ours, owner = counted(outputs, batch)
        drawn = self._stacked(self.drawn, batch, ours)
        if self.task.compares != "distributions":
            return (ours * drawn).sum(-1), owner
        return F.cross_entropy(ours, drawn, reduction="none"), owner

    def stays(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Whether each decision is the original's, or the cosine with it: (P,), (P,)"""
        if self.task.compares != "distributions":  # numbers are never quite the same
            each, owner = self.divergences(outputs, batch)
            return 1 - each if self.task.compares == "vectors" else 0 * each, owner
        decisions, owner = _decisions(self.task, outputs, batch)
        before = torch.tensor([one for i in batch.indices for one in self.decided[i]], device=decisions.device)
        return (decisions == before).float(), owner

    def _stacked(self, rows: list[Tensor], batch: Batch, like: Tensor) -> Tensor:
        """The rows of these examples, as wide as `like` where an output's size depends on its batch."""
        found = [rows[i] for i in batch.indices]
        if found[0].ndim == 2 and self.outcomes is None:
            found = [F.pad(one, (0, like.shape[-1] - one.shape[-1]), value=-torch.inf) for one in found]
        return torch.cat(found).to(like.device)


def counted(outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """The predictions of a batch that count, one row each, and the example that each belongs to: (P, D), (P,)"""
    flat = outputs.float().reshape(len(batch), -1, outputs.shape[-1])  # (B, T, D)
    there = torch.ones(flat.shape[:2], dtype=torch.bool, device=flat.device)
    if batch.labels is not None and batch.labels.ndim == 2 and batch.labels.shape == there.shape:
        there = batch.labels.to(flat.device) != -100
    return flat[there], there.nonzero()[:, 0]


def _decisions(task: BaseTask, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """What is decided for each example, where it counts, and the example that each belongs to: (P,), (P,)"""
    decided = task.predictions(outputs, batch).reshape(len(batch), -1)
    there = torch.ones(decided.shape, dtype=torch.bool, device=decided.device)
    if batch.labels is not None and batch.labels.shape == there.shape:
        there = batch.labels.to(decided.device) != -100
    return decided[there], there.nonzero()[:, 0]


def _kept(task: BaseTask, predicted: Tensor, content: Any) -> tuple[Tensor, Tensor | None, Tensor]:
    """Of an example's predictions (n, D): what is compared with, of which outputs, and what is drawn."""
    seed = int(digest(content), 16) % 2**63
    rng = torch.Generator().manual_seed(seed)
    predicted = predicted.detach().cpu()
    if task.compares != "distributions":
        return predicted, None, torch.randn(predicted.shape, generator=rng)
    logs = F.log_softmax(predicted, dim=-1)
    drawn = torch.multinomial(logs.exp(), 1, generator=rng)[:, 0]
    if logs.shape[-1] <= TOLD_APART or _varies(task):
        return logs, None, drawn
    top, outcomes = logs.topk(LIKELIEST, dim=-1)
    rest = torch.log1p(-top.exp().sum(-1, keepdim=True).clamp(max=1 - 1e-7))
    return torch.cat([top, rest], -1), F.pad(outcomes, (0, 1), value=-1), drawn


def _varies(task: BaseTask) -> bool:
    """Whether the number of outputs differs between batches, as that of an answer's places does."""
    return task.kind in ("answering", "choice", "endings")


def _merged(logs: Tensor, outcomes: Tensor) -> Tensor:
    """Log probabilities of some outcomes, and of all others together: (P, V), (P, K) to (P, K + 1)"""
    told = logs.gather(1, outcomes)
    others = logs.scatter(1, outcomes, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([told, others], dim=-1)


def _by_example(values: Tensor, owner: Tensor, count: int) -> Tensor:
    """Sums over the predictions of each example: (P,) to (B,)"""
    return values.new_zeros(count).index_add(0, owner, values)


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """The longest examples first, as many at a time as make up `TOKENS`."""
    left = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    while left:
        count = max(1, TOKENS // max(1, lengths[left[0]]))
        yield left[:count]
        left = left[count:]


def _written(task: Generation, model: Any) -> list[list[int]]:
    """What the model writes for every example, up to its end."""
    written: list[list[int]] = [[] for _ in range(len(task))]
    for indices in _batches(task.lengths):
        ids = task.decode(model, task.batch(indices).to(device_of(model)))
        for index, row in zip(indices, ids.tolist(), strict=True):
            written[index] = _trimmed(row, task)
    return written


def _trimmed(row: list[int], task: Generation) -> list[int]:
    """A text's tokens up to its end."""
    end = task.tokenizer.eos_token_id
    if end in row:
        return row[: row.index(end) + 1]
    full = list(np.trim_zeros(np.array(row) - task.pad, "b") + task.pad)
    return [int(token) for token in full] or [end]
