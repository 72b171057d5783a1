"""What a task is (`Task`), and most of one (`BaseTask`): batches, a loss and a few statistics per example.

Every metric is a function of the statistics: of their sum (accuracy, BLEU), or of all of their rows (Spearman's rho,
recall). So a sweep over masks runs once, and every interval, paired test and correlation afterwards is arithmetic on
its numbers. A new task also gets an entry in registry.py.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from headcount.errors import BadData, HeadcountError, counted
from headcount.structure import embedding_rows, position_limit
from headcount.tasks.metrics import Metric
from headcount.tasks.rows import Rows
from headcount.tasks.text import pad_token


@dataclass(frozen=True)
class Batch:
    """Examples ready for the model.

    >>> batch = Batch({"input_ids": torch.tensor([[5, 6], [7, 0]])}, torch.tensor([1, 0]), (3, 9))
    >>> len(batch), batch.repeat(2).inputs["input_ids"].tolist(), batch.repeat(2).indices
    (2, [[5, 6], [7, 0], [5, 6], [7, 0]], (3, 9, 3, 9))

    inputs: keyword arguments of the model, first dimension = example; where an example is several texts (the windows of
        a long one, a pair to embed), its rows lie together.
    labels: (B,) class ids, or (B, T) token ids with -100 where nothing is to be predicted.
    indices: the examples' places in the task.
    """

    inputs: dict[str, Tensor]
    labels: Tensor | None
    indices: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in self.inputs.items())
        return f"<batch of {counted(len(self), 'example')}: {shapes}>"

    def to(self, device: torch.device | str) -> Batch:
        labels = None if self.labels is None else self.labels.to(device)
        return replace(self, inputs={name: x.to(device) for name, x in self.inputs.items()}, labels=labels)

    def repeat(self, times: int) -> Batch:
        """Copies stacked whole: examples 0..B-1, then 0..B-1 again, and so on."""

        def stack(x: Tensor) -> Tensor:
            return x.repeat(times, *[1] * (x.dim() - 1))

        labels = None if self.labels is None else stack(self.labels)
        return Batch({name: stack(x) for name, x in self.inputs.items()}, labels, self.indices * times)


class Task(Protocol):
    """What the engine asks of a task; `BaseTask` has a sensible default for most of it."""

    metric: Metric
    generates: bool  # True: statistics() wants what decode() gives; False: what outputs() gives
    drafts: bool = False  # True: it is a `DraftingTask`, whose outputs under a mask are verified, not decoded again

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens per example as the model will see them."""
        ...

    def batch(self, indices: Sequence[int]) -> Batch:
        """These examples on the CPU, padded to the longest of them."""
        ...

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        """The logits, from exactly one call of the model; differentiable."""
        ...

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(B,) loss of each example; differentiable."""
        ...

    def decode(self, model: Any, batch: Batch) -> Tensor:
        """(B, T) generated token ids, for tasks that generate."""
        ...

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(B, S) float64 on the CPU: what the metric needs to know of each example."""
        ...

    def check(self, model: Any) -> list[str]:
        """Refuse a model that does not fit; otherwise what the user should know (guesses, truncation)."""
        ...

    def signature(self) -> dict[str, Any]:
        """What was measured on what, as plain JSON."""
        ...

    def subset(self, indices: Sequence[int]) -> Task:
        """The same task on some of its examples."""
        ...

    def keys(self) -> list[str]:
        """A hash of each example's input, to find the same rows in two tasks."""
        ...


class DraftingTask(Task, Protocol):
    """A generating task whose decoding can be taken apart, which makes sweeps several times faster.

    It sets `drafts` to True and keeps to this: `decode` calls `generate` of an encoder-decoder once, greedily (one
    beam, no sampling), and returns the token ids without the start token. A task that does not is decoded under every
    mask.
    """

    pad: int  # the token id that stands after the end of an output

    def limits(self, model: Any, indices: Sequence[int]) -> Sequence[int]:
        """How many tokens `decode` writes at most for each of these examples."""
        ...


class BaseTask:
    """Examples as lists of token ids, padded per batch: a task of your own adds `losses` and `statistics`.

    >>> metric = Metric("accuracy", lambda sums: sums[..., 1] / sums[..., 0])
    >>> task = BaseTask({"input_ids": [[5, 6, 7], [8]]}, [1, 0], metric=metric)
    >>> task.batch([0, 1]).inputs["input_ids"].tolist(), task.lengths
    ([[5, 6, 7], [8, 0, 0]], [3, 1])

    features: what a tokenizer returns: for each keyword argument of the model, a list per example. A task whose inputs
        are not tokens leaves it empty, gives `lengths` and `content`, and defines `batch`.
    labels: per example a number, or a list of numbers (padded with -100).
    rows: the table that the examples were read from: their places, its remarks and, in the signature, its source.
    columns: what was read from which of its columns, for the signature.
    tokenizer: the one that was used, for the signature; it decides `pad`, with a remark if it has no pad token.
    pad: the token id that pads `input_ids`; padding is on the right, so positions never depend on the batch.
    content: per example what it was made from, for `keys` and the fingerprint; by default its token ids.
    places: how messages name an example ("dev.tsv, line 17").
    remarks: what the user should know; `check` returns them.
    settings: more entries of the signature.
    lengths: tokens per example as the model will see them; by default those of `input_ids`.
    """

    kind = "custom"
    generates = False
    drafts = False
    per_example: tuple[str, ...] = ()  # attributes of a subclass that are lists with an entry per example
    compares: Literal["distributions", "vectors", "numbers"] = "distributions"  # what the last dimension of outputs is

    def __init__(
        self,
        features: Mapping[str, Sequence[Sequence[int]]],
        labels: Sequence[Any] | None = None,
        *,
        metric: Metric,
        rows: Rows | None = None,
        columns: Mapping[str, Any] | None = None,
        tokenizer: Any = None,
        pad: int = 0,
        content: Sequence[Any] | None = None,
        places: Sequence[str] | None = None,
        remarks: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        lengths: Sequence[int] | None = None,
    ) -> None:
        self.features = {name: list(values) for name, values in features.items()}
        self.lengths = [len(ids) for ids in self.features["input_ids"]] if lengths is None else list(lengths)
        # All-zero token types are what a model assumes anyway, and GPT-2 would add an embedding for them.
        if not any(map(any, self.features.get("token_type_ids", []))):
            self.features.pop("token_type_ids", None)
        if not self.lengths:
            raise BadData("there are no examples: the data, or this split, is empty")
        self.labels = None if labels is None else list(labels)
        self.metric = metric
        self.pad = pad
        self.content = list(content) if content is not None else self.features["input_ids"]
        if places is None:
            places = [f"example {i}" if rows is None else rows.place(i) for i in range(len(self))]
        self.places = list(places)
        self.remarks = [*(() if rows is None else rows.remarks), *remarks]
        # In this order: a sweep hashes the signature as it stands, to find what it has kept.
        self.settings: dict[str, Any] = {} if rows is None else {"data": rows.source, "split": rows.split}
        self.settings |= columns or {}
        if tokenizer is not None:
            self.tokenizer = tokenizer
            self.pad, on_padding = pad_token(tokenizer)
            self.remarks += on_padding
            self.settings["tokenizer"] = type(tokenizer).__name__
        self.settings |= settings or {}

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        source = f" of {self.settings['data']}" if self.settings.get("data") else ""
        return f"<{type(self).__name__}: {counted(len(self), 'example')}{source}, {self.metric.name}>"

    def batch(self, indices: Sequence[int]) -> Batch:
        inputs = {
            name: padded([values[i] for i in indices], self.pad if name == "input_ids" else 0)
            for name, values in self.features.items()
        }
        if "attention_mask" not in inputs:
            inputs["attention_mask"] = padded([[1] * self.lengths[i] for i in indices], 0)
        labels = None if self.labels is None else padded([self.labels[i] for i in indices], -100)
        return Batch(inputs, labels, tuple(indices))

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        return model(**batch.inputs).logits

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define losses: one per example")

    def decode(self, model: Any, batch: Batch) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not generate text")

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must define statistics: what its metric needs")

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """What the model decides for each example, as whole numbers: (B,), or (B, T) for T decisions."""
        return outputs.argmax(-1)

    def relabeled(self, labels: Sequence[Any]) -> BaseTask:
        """The same examples with other labels, such as what a model predicts.

        labels: per example, its predictions, (n,) for the n that count.
        """
        part = copy.copy(self)
        old = [None] * len(self) if self.labels is None else self.labels
        part.labels = [_replaced(before, now) for before, now in zip(old, labels, strict=True)]
        return part

    def columns(self, batch: Batch, *columns: Tensor) -> Tensor:
        """Stack statistics, (B,) or (B, k) each, to (B, S); a value that is not finite is refused by its example."""
        parts = [c.detach().double().cpu().reshape(len(batch), -1) for c in columns]
        stacked = torch.cat(parts, dim=1)  # (B, S)
        bad = (~stacked.isfinite()).any(dim=1).nonzero()
        if len(bad):
            row = int(bad[0])
            value = stacked[row][~stacked[row].isfinite()][0].item()
            raise BadData(f"{self.places[batch.indices[row]]}: the model's loss or score is {value}")
        return stacked

    def check(self, model: Any) -> list[str]:
        accepted = inspect.signature(model.forward).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
            for name in self.features:
                if name not in accepted:
                    raise BadData(
                        f"the tokenizer returns {name!r}, which {type(model).__name__} does not accept; "
                        "use the model's own tokenizer, or change tokenizer.model_input_names"
                    )
        if "input_ids" not in self.features:
            return list(self.remarks)
        rows = embedding_rows(model)
        top, where = max((max(ids, default=0), i) for i, ids in enumerate(self.features["input_ids"]))
        if rows is not None and top >= rows:
            raise BadData(
                f"the tokenizer does not fit the model: {self.places[where]} has token id {top}, "
                f"the model has embeddings for {rows} tokens"
            )
        limit, longest = position_limit(model), max(self.lengths)
        if limit is not None and longest > limit:
            many = counted(sum(n > limit for n in self.lengths), "text")
            raise BadData(
                f"the model's {limit} positions are too few for {many} "
                f"({self.places[self.lengths.index(longest)]}: {longest} tokens)",
                advice=f"truncate them to {limit} tokens with {{max_length}}",
            )
        return list(self.remarks)

    def signature(self) -> dict[str, Any]:
        return {
            "task": self.kind,
            "n": len(self),
            "fingerprint": digest([self.content, self.labels]),
            "inputs": digest(self.features),  # as tokenized
            "metric": self.metric.name,
            "metric_signature": self.metric.signature,
            **self.settings,
        }

    def subset(self, indices: Sequence[int]) -> BaseTask:
        if not len(indices):
            raise BadData("a subset of no examples: expected at least one")
        part = copy.copy(self)
        part.features = {name: [values[i] for i in indices] for name, values in self.features.items()}
        part.lengths = [self.lengths[i] for i in indices]
        part.labels = None if self.labels is None else [self.labels[i] for i in indices]
        part.content = [self.content[i] for i in indices]
        part.places = [self.places[i] for i in indices]
        for name in self.per_example:
            setattr(part, name, [getattr(self, name)[i] for i in indices])
        return part

    def keys(self) -> list[str]:
        return [digest(content) for content in self.content]


def _replaced(before: Any, now: Any) -> Any:
    """A label by the prediction in its place; of a list, the entries that count."""
    if not isinstance(before, Sequence):
        return now[0]
    left = iter(now)
    return [label if label == -100 else next(left) for label in before]


def refuse_non_tasks(**given: Any) -> None:
    """Refuse what is not a task, by the argument that it was given as.

    >>> refuse_non_tasks(task="dev.tsv")
    Traceback (most recent call last):
    headcount.errors.HeadcountError: task is a str, not a task; make one with load_task and pass it as task=…
    """
    for name, value in given.items():
        if not all(hasattr(value, part) for part in ("metric", "batch", "statistics")):
            raise HeadcountError(
                f"{name} is a {type(value).__name__}, not a task",
                advice=f"make one with load_task and pass it as {{{name}}}",
            )


def padded(rows: Sequence[Any], value: int) -> Tensor:
    """A tensor (B,) of numbers, or (B, longest) of lists of numbers.

    >>> padded([[1, 2], [3]], value=-100).tolist()
    [[1, 2], [3, -100]]
    """
    if isinstance(rows[0], Sequence):
        width = max(len(row) for row in rows)
        rows = [[*row, *[value] * (width - len(row))] for row in rows]
    return torch.tensor(rows)


def digest(content: Any) -> str:
    """A short sha256 of anything JSON can hold.

    >>> digest(["a text", 1])
    '0c7a8c725fae6993'
    """
    return hashlib.sha256(json.dumps(content, ensure_ascii=False, default=str).encode()).hexdigest()[:16]
