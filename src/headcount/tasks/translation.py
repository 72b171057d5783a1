"""Text to text with any encoder-decoder: translation, summaries, and how a decoder is fed and stopped."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from headcount.errors import BadData
from headcount.structure import output_rows, position_limit, without_cache
from headcount.tasks.columns import Column, find_translation
from headcount.tasks.metrics import TRANSLATION, pick
from headcount.tasks.rows import Rows, aligned
from headcount.tasks.statistics import TextScorer, token_counts, token_losses
from headcount.tasks.task import BaseTask, Batch, digest
from headcount.tasks.text import pad_token, texts_of, tokenized


class Translation(BaseTask):
    """Generate a translation and compare it with the reference; for loss and perplexity, predict the reference.

    >>> from headcount.tasks.toy import word_tokenizer
    >>> rows = [{"en": "a dog", "fr": "un chien"}, {"en": "dog", "fr": "chien"}]
    >>> task = Translation(rows, word_tokenizer("a dog un chien", "marian"), source="en", target="fr")
    >>> task.batch([0, 1]).labels.tolist()
    [[7, 8, 2], [8, 2, -100]]
    >>> sums = task.statistics(torch.tensor([[7, 8, 2], [8, 2, 0]]), task.batch([0, 1])).sum(0)
    >>> sums[:2].tolist()  # words produced, words of the references
    [3.0, 3.0]

    data: whatever `Rows.of` reads. target_data: a second, line-aligned file with the targets.
    source, target: columns by name or number; guessed if left out.
    metric: bleu, chrf, exact_match, perplexity or loss.
    beams: 1 decodes greedily. The rest of the model's generation_config is respected.
    max_new_tokens: by default 1.5 times the source's tokens plus 20, and never beyond the model's positions. Each
        example has its own limit, so an output never depends on what else is in its batch.
    max_length: longer sources, and for the loss longer targets, are truncated to this many tokens, with a remark.
    source_language, target_language: codes of a multilingual tokenizer (mBART: "en_XX", M2M100: "en"); the target's
        language token is forced as the first one.
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
        source, target, on_columns = find_translation(rows, source, target)
        self.targets = texts_of(rows, target)
        with languages_set(tokenizer, source_language, target_language):
            features, on_sources = tokenized(rows, tokenizer, [texts_of(rows, source)], max_length)
            labels, on_targets = tokenized(rows, tokenizer, [self.targets], max_length, target=True)
        pad, on_padding = pad_token(tokenizer)
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
                *(*rows.remarks, *on_columns, *on_sources, *on_padding),
                *(f"targets: {remark}" for remark in on_targets),
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
        """(B, T, V) logits of the reference, each token predicted from those before it."""
        assert batch.labels is not None
        before = decoder_inputs(model, batch.labels)
        return model(**batch.inputs, decoder_input_ids=before, **without_cache(model)).logits

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """(B,) mean negative log likelihood of the reference's tokens."""
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
        """The most tokens that each of these examples can get."""
        room = position_limit(model)
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
            raise BadData(f"{type(model).__name__} cannot translate; expected an encoder-decoder that generates text")
        remarks = super().check(model)
        assert self.labels is not None
        top, rows = max(map(max, self.labels)), output_rows(model)
        if rows is not None and top >= rows:
            raise BadData(f"the tokenizer does not fit the model: target id {top}, but the model has {rows} outputs")
        ours, its = self.tokenizer.eos_token_id, model.config.eos_token_id
        if None not in (ours, its) and ours not in (its if isinstance(its, list) else [its]):
            raise BadData(f"the tokenizer does not fit the model: it ends texts with {ours}, the model with {its}")
        room, longest = position_limit(model), max(map(len, self.labels))
        if room is not None and longest > room:
            raise BadData(
                f"targets have up to {longest} tokens, but the model has {room} positions",
                advice=f"truncate them to {room} tokens with {{max_length}}",
            )
        return remarks

    def signature(self) -> dict[str, Any]:
        return {**super().signature(), "targets": digest(self.targets)}  # whole; labels can be truncated

    def subset(self, indices: Sequence[int]) -> Translation:
        part = super().subset(indices)
        assert isinstance(part, Translation)
        part.targets = [self.targets[i] for i in indices]
        return part


def decoder_inputs(model: Any, labels: Tensor) -> Tensor:
    """(B, T) what the decoder reads to predict the labels: the labels one step later, shifted as the model does it.

    mBART starts with the last token of the labels, other families with their decoder_start_token_id.
    """
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        return model.prepare_decoder_input_ids_from_labels(labels=labels)
    start = model.config.decoder_start_token_id
    if start is None:
        raise BadData(f"{type(model).__name__} has no decoder_start_token_id in its configuration")
    shifted = labels.roll(1, dims=1)
    shifted[:, 0] = start
    return shifted.masked_fill(shifted == -100, model.config.pad_token_id or 0)


class EndAtLimit(LogitsProcessor):
    """End each row at its own limit, whatever else is in the batch.

    limits: (rows,), in beam search one for each beam.
    """

    def __init__(self, model: Any, limits: Tensor) -> None:
        end = model.generation_config.eos_token_id
        self.end = end[0] if isinstance(end, list) else end
        self.limits = limits

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.end is None:
            return scores
        over = self.limits.to(scores.device) <= input_ids.shape[1] - 1  # the start token is not counted
        end = torch.full_like(scores[:1], -torch.inf)
        end[:, self.end] = 0.0
        return torch.where(over[:, None], end, scores)


@contextmanager
def languages_set(tokenizer: Any, source: str | None, target: str | None) -> Iterator[None]:
    """Set a multilingual tokenizer's languages for the block, then restore them."""
    before = {}
    for name, language in (("src_lang", source), ("tgt_lang", target)):
        if language is not None:
            if not hasattr(tokenizer, name):
                raise BadData(f"{type(tokenizer).__name__} is not multilingual; it cannot be set to {language!r}")
            before[name] = getattr(tokenizer, name)
            setattr(tokenizer, name, language)
    try:
        yield
    finally:
        for name, language in before.items():
            setattr(tokenizer, name, language)


def language_token(tokenizer: Any, language: str) -> int:
    """The token that stands for a language."""
    get = getattr(tokenizer, "get_lang_id", tokenizer.convert_tokens_to_ids)  # M2M100 writes "__fr__"
    try:
        token = get(language)
    except KeyError:
        token = None
    if token is None or token == tokenizer.unk_token_id:
        raise BadData(f"the tokenizer does not know the language {language!r}")
    return token
