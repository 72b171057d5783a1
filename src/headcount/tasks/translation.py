"""Sources and targets of any encoder-decoder: translation, summaries, anything text to text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headcount.errors import BadData
from headcount.tasks.columns import Column, find_translation
from headcount.tasks.data import Rows, aligned
from headcount.tasks.metrics import TRANSLATION, TextScorer, pick, token_counts, token_losses
from headcount.tasks.task import BaseTask, Batch, digest
from headcount.tasks.text import (
    EndAtLimit,
    decoder_inputs,
    language_token,
    output_rows,
    pad_token,
    positions,
    speaking,
    texts_of,
    tokenized,
    without_cache,
)


class Translation(BaseTask):
    """Translate, and compare with the reference; or, for loss and perplexity, predict the reference.

    >>> from headcount.tasks.toy import word_tokenizer
    >>> rows = [{"en": "a dog", "fr": "un chien"}, {"en": "dog", "fr": "chien"}]
    >>> task = Translation(rows, word_tokenizer("a dog un chien", "marian"), source="en", target="fr")
    >>> task.batch([0, 1]).labels.tolist()
    [[7, 8, 2], [8, 2, -100]]
    >>> sums = task.statistics(torch.tensor([[7, 8, 2], [8, 2, 0]]), task.batch([0, 1])).sum(0)
    >>> sums[:2].tolist()  # words produced, words of the references
    [3.0, 3.0]

    data: whatever `Rows.of` reads; target_data: a second, line-aligned file with the targets.
    source, target: columns by name or number; guessed if left out.
    metric: bleu, chrf, exact_match, perplexity or loss.
    beams: 1 decodes greedily. Everything else that the model's generation_config says is respected.
    max_new_tokens: by default 1.5 times the source's tokens plus 20, and never beyond the model's positions.
        The limit is each example's own, so an output never depends on what else is in its batch.
    max_length: longer sources, and for the loss targets, are cut to so many tokens, counted and said.
    source_language, target_language: codes of a multilingual tokenizer (mBART: "en_XX", M2M100: "en");
        the target's token is forced as the first one.
    tokenize: sacrebleu's tokenizer for BLEU, such as "13a", "zh", "ja-mecab", "char".
    """

    kind = "translation"

    def __init__(
        self,
        data: Any,
        tokenizer: Any,
        *,
        source: Column = None,
        target: Column = None,
        target_data: Any = None,
        metric: str = "bleu",
        beams: int = 1,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
        forced_bos_token_id: int | None = None,
        tokenize: str = "13a",
        split: str | None = None,
    ) -> None:
        if beams < 1:
            raise BadData(f"beams must be at least 1, not {beams}")
        rows = Rows.of(data, split)
        if target_data is not None:
            rows = aligned(rows, Rows.of(target_data, split), source, target)
            source, target = "source", "target"
        source, target, said_columns = find_translation(rows, source, target)
        self.targets = texts_of(rows, target)
        with speaking(tokenizer, source_language, target_language):
            features, said_source = tokenized(rows, tokenizer, [texts_of(rows, source)], max_length)
            labels, said_target = tokenized(rows, tokenizer, [self.targets], max_length, target=True)
        pad, said_pad = pad_token(tokenizer)
        self.tokenizer = tokenizer
        self.beams, self.max_new_tokens = beams, max_new_tokens
        self.first_token = forced_bos_token_id
        if target_language is not None and forced_bos_token_id is None:
            self.first_token = language_token(tokenizer, target_language)
        chosen = pick(TRANSLATION, metric)
        self.generates = metric not in ("perplexity", "loss")
        self.drafts = self.generates and beams == 1
        self.scorer = TextScorer(metric, tokenize) if self.generates else None
        if self.scorer is not None:
            chosen = self.scorer.signed(chosen)
        super().__init__(
            features,
            labels["input_ids"],
            metric=chosen,
            pad=pad,
            content=rows.table[source],
            places=[rows.place(i) for i in range(len(rows))],
            remarks=[
                *(*rows.remarks, *said_columns, *said_source, *said_pad),
                *(f"targets: {said}" for said in said_target),
            ],
            settings={
                "data": rows.source,
                "split": rows.split,
                "source": source,
                "target": target,
                "tokenizer": type(tokenizer).__name__,
                "beams": beams,
                "max_new_tokens": max_new_tokens or "1.5 x source + 20",
                "forced_bos_token_id": self.first_token,
            },
        )

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        """Logits (B, T, V) of the reference, each token predicted from the ones before it."""
        assert batch.labels is not None
        before = decoder_inputs(model, batch.labels)
        return model(**batch.inputs, decoder_input_ids=before, **without_cache(model)).logits

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(B,) mean negative log likelihood of a token of the reference."""
        assert batch.labels is not None
        return token_losses(outputs, batch.labels.to(outputs.device))

    def decode(self, model: Any, batch: Batch) -> Tensor:
        """(B, T) generated ids without the start token, each row cut at its own limit and padded."""
        limits = torch.tensor(self.limits(model, batch.indices), device=model.device)  # (B,)
        options: dict[str, Any] = {"num_beams": self.beams, "do_sample": False}
        if self.first_token is not None:
            options["forced_bos_token_id"] = self.first_token
        ids = model.generate(
            **batch.inputs,
            max_new_tokens=int(limits.max()) + 1,
            logits_processor=[EndAtLimit(model, limits.repeat_interleave(self.beams))],
            **options,
        )[:, 1:]
        beyond = torch.arange(ids.shape[1], device=ids.device) >= limits[:, None].to(ids.device)
        return ids.masked_fill(beyond, self.pad)

    def limits(self, model: Any, indices: Sequence[int]) -> list[int]:
        """How many tokens each of these examples may get."""
        room = positions(model)
        lengths = [len(self.features["input_ids"][i]) for i in indices]
        wanted = [self.max_new_tokens or math.ceil(1.5 * length) + 20 for length in lengths]
        return [limit if room is None else min(limit, room - 1) for limit in wanted]

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        if self.scorer is None:
            assert batch.labels is not None
            return self.columns(batch, *token_counts(outputs, batch.labels.to(outputs.device)))
        targets = [self.targets[i] for i in batch.indices]
        return self.scorer.statistics(self.tokenizer, outputs, targets, self.pad)

    def check(self, model: Any) -> list[str]:
        if not model.config.is_encoder_decoder or not model.can_generate():
            raise BadData(f"{type(model).__name__} does not translate: an encoder-decoder is needed")
        remarks = super().check(model)
        assert self.labels is not None
        top, rows = max(map(max, self.labels)), output_rows(model)
        if rows is not None and top >= rows:
            raise BadData(f"the tokenizer does not fit the model: target id {top}, but {rows} outputs")
        ours, its = self.tokenizer.eos_token_id, model.config.eos_token_id
        if None not in (ours, its) and ours not in (its if isinstance(its, list) else [its]):
            raise BadData(f"the tokenizer does not fit the model: it ends texts with {ours}, the model with {its}")
        room, longest = positions(model), max(map(len, self.labels))
        if room is not None and longest > room:
            raise BadData(
                f"targets of up to {longest} tokens, but the model has {room} positions: pass max_length={room}"
            )
        return remarks

    def signature(self) -> dict[str, Any]:
        return {**super().signature(), "targets": digest(self.targets)}  # whole, where labels may be cut

    def subset(self, indices: Sequence[int]) -> Translation:
        part = super().subset(indices)
        assert isinstance(part, Translation)
        part.targets = [self.targets[i] for i in indices]
        return part
