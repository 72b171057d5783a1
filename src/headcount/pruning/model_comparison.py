"""`compare_models`: two models on the same examples: the change, the verdict, and how often they agree."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from headcount.engine import Arrays, Progress, batches_by_length, device_type, is_finite, over_shards, tokens_for
from headcount.errors import BadData, HeadcountError, counted
from headcount.export import open_onnx
from headcount.pruning.cut_size import Budget
from headcount.pruning.pruned import Pruned
from headcount.reporting import Shown
from headcount.runs import RunDirectory, model_signature, open_run, versions
from headcount.stats import NonInferiority, noninferior, paired_effects
from headcount.structure import device_of
from headcount.tasks import Batch, Metric, Task, digest, refuse_non_tasks


def compare_models(
    model: Any,
    other: Any,
    task: Task,
    other_task: Task | None = None,
    *,
    max_drop: float = 1.0,
    run: str | Path | RunDirectory | None = None,
    progress: Progress | None = None,
) -> ModelComparison:
    """Measure two models on the same examples, and test whether the second is at most `max_drop` points worse.

    >>> from headcount import remove
    >>> from headcount.tasks.classification import toy_classifier
    >>> model, task = toy_classifier()
    >>> compared = compare_models(model, remove(model, ["encoder.0.1"]), task)
    >>> compared.n == len(task), 0 <= compared.agreement <= 1
    (True, True)

    other: a model, or the path of an .onnx file that `export_onnx` wrote.
    other_task: the same data for the second model, where it has another tokenizer or numbers its classes differently.
    max_drop: the margin of the verdict, in points, as in `prune`.
    run: a run directory; the same call resumes there. progress: called with the share done.
    """
    refuse_non_tasks(task=task, other_task=other_task or task)
    on_other = task if other_task is None else other_task
    second = open_onnx(other) if isinstance(other, str | Path) else other
    for name, one in (("model", model), ("other", second)):
        if not isinstance(one, nn.Module):
            raise HeadcountError(f"{name} is a {type(one).__name__}", advice=f"give {{{name}}} a model, loaded")
    if on_other.metric.name != task.metric.name:
        raise BadData(
            f"the task is measured by {task.metric.name}, and other_task by {on_other.metric.name}",
            advice="give both the same metric",
        )
    if len(on_other) != len(task):
        raise BadData(
            f"{counted(len(task), 'example')} cannot be paired with {len(on_other)}: "
            "the tokenizers split the texts differently, or the data are not the same"
        )
    on_other.check(second)
    task.check(model)
    models = [model_signature(one) for one in (model, second)]
    signature = {"models": models, "task": task.signature(), "versions": versions()}
    key = digest(signature)
    with open_run(run, signature) as directory:
        measured = []
        for place, (one, data) in enumerate(((model, task), (second, on_other))):
            work = Predictions(tokens_for(one, device_type(one)), _width(data))
            measured.append(
                over_shards(
                    work, one, data, directory=directory, name=f"model-{place}", signature=key,
                    progress=None if progress is None else partial(_half, progress, place),
                )
            )  # fmt: skip
    base, after = (arrays["values"] for arrays in measured)
    first, then = (arrays["predicted"] for arrays in measured)
    metric, score = task.metric, float(task.metric.of(base))
    effect = paired_effects(base, after[None], metric, resamples=2000)
    allowed = Budget.of(metric, max_drop, score).allowed
    return ModelComparison(
        metric=metric,
        n=len(task),
        before=score,
        after=float(effect.score[0]),
        change=float(effect.change[0]),
        low=float(effect.low[0]),
        high=float(effect.high[0]),
        p=float(effect.p[0]),
        test=effect.test,
        max_drop=max_drop,
        verdict=noninferior(base, after, metric, allowed, higher_is_better=metric.higher_is_better),
        agreement=_agreement(first, then, task, on_other, model, second),
        agreement_of=_what_agrees(task),
        signature=signature,
    )


def _half(progress: Progress, place: int, share: float) -> None:
    progress((place + share) / 2)


@dataclass(frozen=True, eq=False)
class ModelComparison(Shown):
    """Two models on the same examples.

    before, after: the metric of the first and of the second model; change, low, high: second minus first with its
    paired 95% interval; p: of the `test` that the change is 0. verdict: whether the second is shown to be at most
    `max_drop` points worse. agreement: the share of `agreement_of` ("examples", "outputs" or "tokens") that both
    predict alike; None where predictions cannot be compared.
    """

    metric: Metric
    n: int
    before: float
    after: float
    change: float
    low: float
    high: float
    p: float
    test: str
    max_drop: float
    verdict: NonInferiority
    agreement: float | None
    agreement_of: str
    signature: dict[str, Any]

    def verdict_in_words(self) -> str:
        """The result of the non-inferiority test, as `prune` words it."""
        return Pruned.verdict_in_words(cast(Any, self))

    def to_json(self) -> dict[str, Any]:
        """What `headcount compare A B --json` says."""
        names = ("before", "after", "change", "low", "high", "p", "test", "max_drop", "agreement", "agreement_of", "n")
        return {
            **{name: getattr(self, name) for name in names},
            **self.metric.facts(),
            "noninferior": self.verdict.shown,
            "bound": self.verdict.bound,
            "examples_needed": self.verdict.examples_needed,
            "verdict": self.verdict_in_words(),
        }

    def __repr__(self) -> str:
        before, after = (self.metric.written(value) for value in (self.before, self.after))
        change, low, high = (self.metric.written(value, sign=True) for value in (self.change, self.low, self.high))
        on = f"on {counted(self.n, 'example')}"
        return f"<{self.metric.name} {before} and {after} {on}, change {change} ({low} to {high})>"


@dataclass(frozen=True, eq=False)
class Predictions:
    """What an engine does on every shard: each example's statistics, (N, S), and what was predicted, (N, width)."""

    tokens: int
    width: int

    def summed(self, name: str) -> bool:
        return False

    def fits(self, arrays: Arrays, count: int) -> bool:
        values, predicted = arrays.get("values"), arrays.get("predicted")
        if values is None or predicted is None or predicted.shape != (count, self.width):
            return False
        return values.ndim == 2 and len(values) == count and is_finite(values) and predicted.dtype == np.int64

    def __call__(self, model: Any, examples: Any, progress: Progress | None = None) -> Arrays:
        rows: dict[int, np.ndarray] = {}
        predicted = np.full((len(examples), self.width), -1, np.int64)
        batches = batches_by_length(examples.lengths, self.tokens)
        training = model.training
        model.eval()
        try:
            for done, indices in enumerate(batches, start=1):
                batch = examples.batch(indices).to(device_of(model))
                with torch.inference_mode():
                    ask = examples.decode if examples.generates else examples.outputs
                    outputs = ask(model, batch)
                rows.update(zip(indices, examples.statistics(outputs, batch).numpy(), strict=True))
                found = _predicted(examples, outputs, batch, self.width)  # (B, at most width)
                predicted[np.ix_(indices, range(found.shape[1]))] = found
                if progress is not None:
                    progress(done / len(batches))
        finally:
            model.train(training)
        return {"values": np.stack([rows[index] for index in range(len(examples))]), "predicted": predicted}


def _width(task: Task) -> int:
    """How many numbers a prediction is: one for a class, a span or a text; otherwise one for each token."""
    if task.generates or _of_spans(task):
        return 1
    labels = task.batch([0]).labels
    return max(task.lengths) if labels is not None and labels.dim() == 2 else 1


def _of_spans(task: Any) -> bool:
    return getattr(task, "kind", None) == "answering"


def _predicted(task: Any, outputs: Any, batch: Batch, width: int) -> np.ndarray:
    """What a model predicts, as numbers (B, T): classes, hashes of texts, tokens; -1 where nothing is asked for."""
    if task.generates:
        tokenizer = getattr(task, "tokenizer", None)
        rows = outputs.tolist()
        texts = [[token for token in row if token != task.pad] for row in rows]
        written = texts if tokenizer is None else tokenizer.batch_decode(texts, skip_special_tokens=True)
        return np.array([[int(hashlib.sha256(str(text).encode()).hexdigest()[:15], 16)] for text in written], np.int64)
    if getattr(task, "compares", None) != "distributions":  # numbers and vectors are never quite the same
        return np.full((len(batch), 0), -1, np.int64)
    best = task.predictions(outputs, batch).reshape(len(batch), -1).cpu()  # (B, 1), (B, T)
    if batch.labels is not None and batch.labels.shape == best.shape:
        best = best.masked_fill(batch.labels.cpu() == -100, -1)
    return best[:, :width].numpy()


def _what_agrees(task: Task) -> str:
    return "outputs" if task.generates else "examples" if _width(task) == 1 else "tokens"


def _agreement(first: np.ndarray, second: np.ndarray, task: Any, on_other: Any, model: Any, other: Any) -> float | None:
    """The share of predictions that are the same, of those that both models made."""
    by_place = first.shape[1] > 1 or _of_spans(task)
    if by_place and not _same_tokens(task, on_other):
        return None  # they cannot be compared one by one
    names = [_class_names(one) for one in (model, other)]
    if not task.generates and first.shape[1] == 1 and all(names) and names[0] != names[1]:
        known = {name: place for place, name in enumerate(names[0])}
        renumbered = {number: known.get(name, -2) for number, name in enumerate(names[1])}
        second = np.array([[renumbered.get(int(number), -1)] for number in second[:, 0]])
    made = (first >= 0) & (second != -1) if first.shape == second.shape else np.zeros(0, bool)
    return float((first == second)[made].mean()) if made.any() else None


def _same_tokens(task: Any, other: Any) -> bool:
    if task is other:
        return True
    pairs = ([one.batch([i]).inputs["input_ids"] for one in (task, other)] for i in range(len(task)))
    return all(torch.equal(*pair) for pair in pairs)


def _class_names(model: Any) -> list[str]:
    """A classifier's names of its classes, by number; none if it has only placeholders."""
    names = getattr(model.config, "id2label", None) or {}
    written = [str(names[number]).lower() for number in sorted(names)]
    return [] if all(name == f"label_{number}" for number, name in enumerate(written)) else written
