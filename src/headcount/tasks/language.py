"""Language modelling: predict tokens from those before them (causal), or hidden tokens from their context (masked)."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from torch import Tensor
from transformers.models.auto import modeling_auto

from headcount.errors import BadData, counted
from headcount.structure import is_any_of, output_rows, without_cache
from headcount.tasks.columns import Column, find_text
from headcount.tasks.metrics import LANGUAGE, pick
from headcount.tasks.rows import Rows
from headcount.tasks.statistics import token_counts, token_losses
from headcount.tasks.task import BaseTask, Batch
from headcount.tasks.text import length_limit, texts_of

LANGUAGE_MODELS = {  # names of model classes in transformers
    "masked": frozenset(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()),
    "causal": frozenset(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()),
}


class LanguageModeling(BaseTask):
    """Plain texts, predicted token by token.

    >>> from headcount.tasks.text import word_tokenizer
    >>> rows = [{"text": "a fine film"}, {"text": "a dull film"}]
    >>> task = LanguageModeling(rows, word_tokenizer("a fine dull film", "gpt"), masked=False)
    >>> batch = task.batch([0])
    >>> batch.inputs["input_ids"].tolist(), batch.labels.tolist()
    ([[5, 6, 8]], [[6, 8, -100]])

    data: whatever `Rows.of` reads. text: the column; guessed if left out.
    masked: hide tokens and predict those; by default if the tokenizer has a mask token.
    block: longer texts are split into pieces of at most this many tokens; by default the tokenizer's limit.
    metric: perplexity, loss or accuracy, all per token.
    seed, share: which tokens are hidden, and what share of them (masked only). The choice depends on the seed and the
        text alone, so every mask of heads, every batch and every subset sees the same.
    """

    kind = "language"

    def __init__(
        self, data: Any, tokenizer: Any, *, masked: bool | None = None, text: Column = None, block: int | None = None,
        metric: str = "perplexity", seed: int = 0, share: float = 0.15, split: str | None = None,
    ) -> None:  # fmt: skip
        rows = Rows.of(data, split)
        text, _, on_columns = find_text(rows, text, None)
        self.masked = tokenizer.mask_token_id is not None if masked is None else masked
        if self.masked and tokenizer.mask_token_id is None:
            raise BadData("the tokenizer has no mask token: it belongs to a causal model", advice="leave out {masked}")
        block = length_limit(tokenizer, block)
        pieces, origins = _pieces(texts_of(rows, text), tokenizer, block)
        special = frozenset(tokenizer.all_special_ids) if self.masked else frozenset()
        examples = [
            _hidden(ids, special, tokenizer, seed, share) if self.masked else (ids, [*ids[1:], -100]) for ids in pieces
        ]
        kept = [i for i, (_, labels) in enumerate(examples) if any(label != -100 for label in labels)]
        super().__init__(
            {"input_ids": [examples[i][0] for i in kept]},
            [examples[i][1] for i in kept],
            metric=pick(LANGUAGE, metric),
            rows=rows,
            columns={"text": text},
            tokenizer=tokenizer,
            content=[pieces[i] for i in kept],
            places=[rows.place(origins[i]) for i in kept],
            remarks=[*on_columns, *_remarks(origins, kept, len(rows), block)],
            settings={
                "block": block,
                "masked": self.masked,
                **({"seed": seed, "share": share} if self.masked else {}),
            },
        )

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        return model(**batch.inputs, **without_cache(model)).logits  # (B, T, V)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(B,) mean negative log likelihood of the example's predicted tokens."""
        assert batch.labels is not None
        return token_losses(outputs, batch.labels.to(outputs.device))

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        assert batch.labels is not None
        return self.columns(batch, *token_counts(outputs, batch.labels.to(outputs.device)))

    def check(self, model: Any) -> list[str]:
        name, (kind, other) = type(model).__name__, ("masked", "causal")[:: 1 if self.masked else -1]
        if not is_any_of(model, LANGUAGE_MODELS[kind]) and is_any_of(model, LANGUAGE_MODELS[other]):
            raise BadData(f"{name} is a {other} language model, not a {kind} one", advice="change {masked}")
        if model.config.is_encoder_decoder or output_rows(model) is None:
            raise BadData(f"{name} is not a {kind} language model")
        return super().check(model)


def _pieces(texts: list[str], tokenizer: Any, block: int | None) -> tuple[list[list[int]], list[int]]:
    """Token ids of texts split into blocks, and which text each comes from; blank texts are skipped."""
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
    """Inputs and labels with a share of the tokens hidden as in BERT's training: 80% mask, 10% random, 10% kept."""
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


def _remarks(origins: list[int], kept: list[int], texts: int, block: int | None) -> list[str]:
    remarks = []
    if len(origins) > len(set(origins)):
        texts_split = f"{counted(len(set(origins)), 'text')} became {len(origins)} pieces"
        remarks.append(f"texts longer than {block} tokens were split: {texts_split}")
    nothing = texts - len({origins[i] for i in kept})
    if nothing:
        remarks.append(f"{nothing} of {texts} texts are too short to predict anything and were left out")
    return remarks
