"""Texts to predict token by token: from what comes before (causal), or from around it (masked)."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from torch import Tensor

from headcount.errors import BadData
from headcount.tasks.columns import Column, find_text
from headcount.tasks.data import Rows
from headcount.tasks.metrics import LANGUAGE, pick, token_counts, token_losses
from headcount.tasks.task import BaseTask, Batch
from headcount.tasks.text import kind_of, length_limit, pad_token, texts_of, without_cache


class LanguageModeling(BaseTask):
    """A language model's task: plain texts.

    >>> from headcount.tasks.toy import word_tokenizer
    >>> rows = [{"text": "a fine film"}, {"text": "a dull film"}]
    >>> task = LanguageModeling(rows, word_tokenizer("a fine dull film", "gpt"), masked=False)
    >>> batch = task.batch([0])
    >>> batch.inputs["input_ids"].tolist(), batch.labels.tolist()
    ([[5, 6, 8]], [[6, 8, -100]])

    data: whatever `Rows.of` reads. text: the column; guessed if left out.
    masked: hide tokens and predict those; by default if the tokenizer has a mask token.
    block: longer texts are split into pieces of at most so many tokens; by default the tokenizer's limit.
    metric: perplexity, loss or accuracy, all per token.
    seed, share: which tokens are hidden (masked only). They depend on the seed and the text alone, so every
        mask of heads, every batch and every subset sees the same ones.
    """

    kind = "language"

    def __init__(
        self,
        data: Any,
        tokenizer: Any,
        *,
        text: Column = None,
        masked: bool | None = None,
        block: int | None = None,
        metric: str = "perplexity",
        seed: int = 0,
        share: float = 0.15,
        split: str | None = None,
    ) -> None:
        rows = Rows.of(data, split)
        text, _, said_text = find_text(rows, text, None)
        self.tokenizer = tokenizer
        self.masked = tokenizer.mask_token_id is not None if masked is None else masked
        if self.masked and tokenizer.mask_token_id is None:
            raise BadData("the tokenizer has no mask token: it is for a causal model (masked=False)")
        block = length_limit(tokenizer, block)
        pieces, origins = _pieces(texts_of(rows, text), tokenizer, block)
        special = frozenset(tokenizer.all_special_ids) if self.masked else frozenset()
        examples = [
            _hidden(ids, special, tokenizer, seed, share) if self.masked else (ids, [*ids[1:], -100]) for ids in pieces
        ]
        kept = [i for i, (_, labels) in enumerate(examples) if any(label != -100 for label in labels)]
        pad, said_pad = pad_token(tokenizer)
        super().__init__(
            {"input_ids": [examples[i][0] for i in kept]},
            [examples[i][1] for i in kept],
            metric=pick(LANGUAGE, metric),
            pad=pad,
            content=[pieces[i] for i in kept],
            places=[rows.place(origins[i]) for i in kept],
            remarks=[*rows.remarks, *said_text, *_said(origins, kept, len(rows), block), *said_pad],
            settings={
                "data": rows.source,
                "split": rows.split,
                "text": text,
                "tokenizer": type(tokenizer).__name__,
                "block": block,
                "masked": self.masked,
                **({"seed": seed, "share": share} if self.masked else {}),
            },
        )

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        return model(**batch.inputs, **without_cache(model)).logits  # (B, T, V)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(B,) mean negative log likelihood of an example's predicted tokens."""
        assert batch.labels is not None
        return token_losses(outputs, batch.labels.to(outputs.device))

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        assert batch.labels is not None
        return self.columns(batch, *token_counts(outputs, batch.labels.to(outputs.device)))

    def check(self, model: Any) -> list[str]:
        wanted = "masked" if self.masked else "causal"
        if kind_of(model) not in (wanted, None):
            raise BadData(f"{type(model).__name__} is no {wanted} language model; pass masked={not self.masked}")
        return super().check(model)


def _pieces(texts: list[str], tokenizer: Any, block: int | None) -> tuple[list[list[int]], list[int]]:
    """Token ids of texts split into blocks, and which text each comes from; blank lines are passed over."""
    written = [i for i, text in enumerate(texts) if text.strip()]
    if not written:
        return [], []
    options: dict[str, Any] = {"verbose": False}
    if block is not None:
        options |= {"truncation": True, "max_length": block, "return_overflowing_tokens": True}
    encoded = tokenizer([texts[i] for i in written], **options)
    origins = encoded.get("overflow_to_sample_mapping", range(len(written)))
    return encoded["input_ids"], [written[i] for i in origins]


def _hidden(
    ids: list[int], special: frozenset[int], tokenizer: Any, seed: int, share: float
) -> tuple[list[int], list[int]]:
    """Input and labels with a share of the tokens hidden as BERT was trained: 80% mask, 10% random, 10% kept."""
    inputs, labels = list(ids), [-100] * len(ids)
    candidates = [i for i, token in enumerate(ids) if token not in special]
    if not candidates:
        return inputs, labels
    content = hashlib.sha256(np.array([seed, *ids]).tobytes()).digest()
    rng = np.random.default_rng(int.from_bytes(content[:8], "big"))
    for i in rng.permutation(candidates)[: max(1, round(share * len(candidates)))]:
        labels[i] = ids[i]
        how = rng.random()
        if how < 0.8:
            inputs[i] = tokenizer.mask_token_id
        elif how < 0.9:
            inputs[i] = int(rng.integers(tokenizer.vocab_size))
    return inputs, labels


def _said(origins: list[int], kept: list[int], texts: int, block: int | None) -> list[str]:
    remarks = []
    if len(origins) > len(set(origins)):
        remarks.append(f"long texts are split at {block} tokens: {len(origins)} pieces of {len(set(origins))} texts")
    nothing = texts - len({origins[i] for i in kept})
    if nothing:
        remarks.append(f"{nothing} of {texts} texts are too short to predict anything and are left out")
    return remarks
