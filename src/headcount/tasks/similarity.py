"""Numbers instead of classes: regression on texts or pairs of texts, and embeddings compared by their cosine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headcount.errors import BadData
from headcount.structure import came_from
from headcount.tasks.classification import padding_known
from headcount.tasks.columns import SCORES, Column, find_column, find_text, is_number, is_text
from headcount.tasks.metrics import EMBEDDING, REGRESSION, pick
from headcount.tasks.rows import Rows
from headcount.tasks.task import BaseTask, Batch, digest, padded
from headcount.tasks.text import read_texts, texts_of, tokenized


class Regression(BaseTask):
    """A number for each text or pair of texts, by a classifier with a single output.

    >>> from headcount.tasks.text import word_tokenizer
    >>> rows = [{"sentence1": "a dog", "sentence2": "a cat", "score": "2.5"}]
    >>> Regression(rows, word_tokenizer("a dog cat")).labels
    [2.5]

    data: whatever `Rows.of` reads. text, pair, label: columns by name or number; guessed if left out.
    metric: pearson, spearman or mse. max_length: longer texts are truncated to this many tokens, with a remark.
    labels: False if the data has no numbers.
    """

    kind = "regression"
    compares = "numbers"

    def __init__(
        self, data: Any, tokenizer: Any, *, text: Column = None, pair: Column = None, label: Column = None,
        metric: str = "pearson", max_length: int | None = None, split: str | None = None, labels: bool = True,
    ) -> None:  # fmt: skip
        rows = Rows.of(data, split)
        scores, label, on_label = _scores(rows, label) if labels else ([0.0] * len(rows), label, [])
        texts = read_texts(rows, tokenizer, text, pair, label, max_length, on_label)
        super().__init__(labels=scores, metric=pick(REGRESSION, metric), **texts)

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        with padding_known(model, self.pad):
            return model(**batch.inputs).logits  # (B, 1)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(B,) squared errors."""
        return (outputs.float()[:, 0] - self._wanted(batch).to(outputs.device).float()) ** 2

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        return outputs[:, 0]

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self.columns(batch, paired(outputs[:, 0].detach().cpu(), self._wanted(batch), self.metric.name))

    def _wanted(self, batch: Batch) -> Tensor:
        """(B,) float64"""
        assert self.labels is not None
        return torch.tensor([self.labels[i] for i in batch.indices], dtype=torch.float64)

    def check(self, model: Any) -> list[str]:
        if model.config.num_labels != 1:
            raise BadData(f"the model has {model.config.num_labels} outputs; expected a single one, for regression")
        return super().check(model)


def paired(x: Tensor, y: Tensor, metric: str) -> Tensor:
    """What a metric of two numbers per example needs: the two for ranks, otherwise sums of powers.

    >>> paired(torch.tensor([1.0]), torch.tensor([3.0]), "mse").tolist()
    [[1.0, 1.0, 3.0, 1.0, 9.0, 3.0, 4.0]]
    """
    x, y = x.double(), y.double()
    columns = [x, y] if metric == "spearman" else [torch.ones_like(x), x, y, x * x, y * y, x * y, (x - y) ** 2]
    return torch.stack(columns, dim=1)


def _scores(rows: Rows, label: Column) -> tuple[list[float], str, list[str]]:
    """The column of numbers, its name, and remarks."""
    label, remarks = find_column(rows, label, "label", SCORES, is_number)
    for i, value in enumerate(rows.table[label]):
        if not is_number(value):
            raise BadData(f"{rows.place(i, label)}: expected a number, not {value!r}")
    return [float(value) for value in rows.table[label]], label, remarks


class Embedding(BaseTask):
    """Texts as vectors: pairs with a score, pairs of a query and its document, or single texts without labels.

    >>> from headcount.tasks.text import word_tokenizer
    >>> rows = [{"query": "dog", "document": "a dog ran"}, {"query": "cat", "document": "a cat"}]
    >>> task = Embedding(rows, word_tokenizer("a dog ran cat"))
    >>> task.metric.name, task.batch([0, 1]).inputs["input_ids"].shape  # both texts of an example lie together
    ('recall@1', torch.Size([4, 5]))

    data: whatever `Rows.of` reads. text, pair, label: columns by name or number; guessed if left out.
    metric: of the cosines of pairs: spearman or pearson with the scores; recall@1, recall@5 or recall@10, the share of
        queries whose document is among the nearest of all documents. By default what the data allows.
    how: how token vectors become one; by default the mean. `Pooling.of` reads it beside a model.
    max_length: longer texts are truncated to this many tokens, with a remark.
    labels: False if there is nothing to compare with: single texts will do.
    """

    kind = "embedding"
    compares = "vectors"
    per_example = ("texts",)

    def __init__(
        self, data: Any, tokenizer: Any, *, text: Column = None, pair: Column = None, label: Column = None,
        metric: str | None = None, how: Pooling | None = None, max_length: int | None = None, split: str | None = None,
        labels: bool = True,
    ) -> None:  # fmt: skip
        rows = Rows.of(data, split)
        self.how = how or Pooling()
        scores, on_label = None, list[str]()
        if labels and (label is not None or any(_is_scores(rows, name) for name in rows.names)):
            scores, label, on_label = _scores(rows, label)
        name = None if label is None else str(label)
        text, pair, on_text = find_text(rows, text, pair, name)
        others = [n for n in rows.names if n not in (text, name) and all(map(is_text, rows.table[n]))]
        if pair is None and labels and len(others) == 1:
            pair = others[0]
            on_text.append(f"second text: column {pair!r}")
        if pair is None and labels:
            raise BadData(
                f"{rows.source} has single texts, without anything to compare them with",
                advice="name the column of the second text as {pair}, or set {labels} to none",
            )
        columns = [[self.how.prepared(one) for one in texts_of(rows, column)] for column in (text, pair) if column]
        limits = [limit for limit in (max_length, self.how.max_length) if limit is not None]
        encoded = [tokenized(rows, tokenizer, [texts], min(limits, default=None)) for texts in columns]
        self.texts = [[{name: values[i] for name, values in features.items()} for features, _ in encoded]
                      for i in range(len(rows))]  # fmt: skip
        chosen = metric or ("spearman" if scores is not None else "recall@1")
        if chosen in REGRESSION and scores is None and labels:
            raise BadData(f"{chosen} needs a score for each pair", advice="name its column as {label}")
        super().__init__(
            {},
            scores,
            metric=pick(EMBEDDING, chosen),
            rows=rows,
            columns={"text": text, "pair": pair, "label": label},
            tokenizer=tokenizer,
            content=list(zip(*columns, strict=True)),
            remarks=[*on_text, *on_label, *dict.fromkeys(r for _, part in encoded for r in part)],
            settings={"pooling": self.how.mode},
            lengths=[len(one) * max(len(text["input_ids"]) for text in one) for one in self.texts],
        )
        # The loss compares cosines with scores from 0 to 1, as sentence-transformers' CosineSimilarityLoss does.
        low, high = (0.0, 1.0) if not scores else (min(scores), max(scores))
        self.scale = (low, (high - low) or 1.0)

    def batch(self, indices: Sequence[int]) -> Batch:
        flat = [text for i in indices for text in self.texts[i]]
        inputs = {name: padded([text[name] for text in flat], self.pad if name == "input_ids" else 0)
                  for name in flat[0]}  # fmt: skip
        return Batch(inputs, None, tuple(indices))

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        """(B, texts, d) unit vectors"""
        hidden = model(**batch.inputs).last_hidden_state
        vectors = self.how.pooled(hidden, batch.inputs["attention_mask"].to(hidden.device))
        return F.normalize(vectors.float(), dim=-1).unflatten(0, (len(batch), -1))

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(B,) squared errors of the cosines, with scores from 0 to 1; without scores, how far they are from 1."""
        cosine = self.predictions(outputs, batch)
        if self.labels is None:
            return 1 - cosine
        low, width = self.scale
        wanted = (torch.tensor([self.labels[i] for i in batch.indices], device=cosine.device) - low) / width
        return (cosine - wanted) ** 2

    def predictions(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(B,) the cosine of each pair."""
        return (outputs[:, 0] * outputs[:, -1]).sum(-1)

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        if self.metric.name not in REGRESSION:
            return self.columns(batch, outputs.flatten(1))
        assert self.labels is not None
        wanted = torch.tensor([self.labels[i] for i in batch.indices], dtype=torch.float64)
        pairs = outputs.detach().cpu().double()
        return self.columns(batch, paired((pairs[:, 0] * pairs[:, -1]).sum(-1), wanted, self.metric.name))

    def check(self, model: Any) -> list[str]:
        name = type(model).__name__
        if model.config.is_encoder_decoder:
            raise BadData(f"{name} is an encoder-decoder; expected an encoder, whose last hidden states are embeddings")
        if "For" in name or name.endswith("LMHeadModel"):
            raise BadData(f"{name} has a head on top of its embeddings; expected a bare encoder, such as BertModel")
        return super().check(model)

    def signature(self) -> dict[str, Any]:
        return {**super().signature(), "inputs": digest(self.texts)}


@dataclass(frozen=True)
class Pooling:
    """How an embedder makes one vector of the vectors of all tokens.

    >>> Pooling("mean").pooled(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[1, 1, 0]])).tolist()
    [[2.0]]

    mode: mean, cls (the first token), max, lasttoken, mean_sqrt_len_tokens, weightedmean, as in sentence-transformers.
    max_length: tokens of a text at most. prompt: put before every text. lower: texts are lower-cased first.
    """

    mode: str = "mean"
    max_length: int | None = None
    prompt: str = ""
    lower: bool = False

    def prepared(self, text: str) -> str:
        return self.prompt + (text.lower() if self.lower else text)

    def pooled(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(N, T, d) hidden states and (N, T) which of them are not padding, which is on the right, to (N, d)"""
        real = mask[..., None].to(hidden.dtype)
        if self.mode == "cls":
            return hidden[:, 0]
        if self.mode == "max":
            return hidden.masked_fill(real == 0, -1e9).amax(1)
        if self.mode == "lasttoken":
            return hidden[torch.arange(len(hidden)), mask.sum(1) - 1]
        if self.mode == "weightedmean":
            real = real * torch.arange(1, hidden.shape[1] + 1, device=hidden.device)[:, None]
        total, count = (hidden * real).sum(1), real.sum(1).clamp(min=1e-9)
        return total / (count.sqrt() if self.mode == "mean_sqrt_len_tokens" else count)

    @classmethod
    def of(cls, model: Any) -> tuple[Pooling, list[str]]:
        """What the sentence-transformers directory that a model came from says, and remarks."""
        folder = Path(came_from(model))
        folder = folder if (folder / "modules.json").is_file() else folder.parent  # beside 0_Transformer
        modules = _read(folder / "modules.json")
        if not isinstance(modules, list):
            return cls(), ["pooling: the mean of all tokens, since the model has no modules.json that says otherwise"]
        mode, types = "mean", [str(one.get("type", "")).rpartition(".")[2] for one in modules]
        for one, kind in zip(modules, types, strict=True):
            if kind == "Pooling":
                mode = _mode(_read(folder / str(one.get("path", "")) / "config.json") or {})
            elif kind not in ("Transformer", "Normalize"):
                raise BadData(
                    f"{folder / 'modules.json'} has a {kind} module; expected Transformer, Pooling, Normalize"
                )
        text = _read(folder / "sentence_bert_config.json") or {}
        prompts = _read(folder / "config_sentence_transformers.json") or {}
        prompt = (prompts.get("prompts") or {}).get(prompts.get("default_prompt_name")) or ""
        return cls(mode, text.get("max_seq_length"), prompt, bool(text.get("do_lower_case"))), []


MODES = {  # older names
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def _mode(config: dict[str, Any]) -> str:
    mode = config.get("pooling_mode") or [new for old, new in MODES.items() if config.get(old)]
    modes = [mode] if isinstance(mode, str) else list(mode)
    if len(modes) != 1 or modes[0] not in MODES.values():
        raise BadData(f"the model pools by {modes}; expected one of {', '.join(MODES.values())}")
    return modes[0]


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    except (OSError, ValueError, RecursionError) as error:
        raise BadData(f"{file} cannot be read: {error}") from None


def _is_scores(rows: Rows, name: str) -> bool:
    return name.strip().lower() in SCORES and all(map(is_number, rows.table[name]))
