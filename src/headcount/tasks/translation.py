"""Texts written by an encoder-decoder: translations, summaries, and how a decoder is fed, stopped and scored."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationMixin, LogitsProcessor

from headcount.errors import BadData
from headcount.structure import output_rows, position_limit, without_cache
from headcount.tasks.columns import LANGUAGES, SOURCES, TEXTS, Column, find_column, find_translation, is_text
from headcount.tasks.metrics import TRANSLATION, Metric, pick
from headcount.tasks.rows import Rows, aligned
from headcount.tasks.statistics import TextScorer, token_counts, token_losses
from headcount.tasks.task import BaseTask, Batch, digest
from headcount.tasks.text import texts_of, tokenized


class Generation(BaseTask):
    """What tasks share whose model writes a text: decoding, scoring it, and the loss of the reference.

    tokenizer: turns token ids into texts. targets: the references, one text per example; `labels` has their tokens.
    beams: 1 decodes greedily. scorer: of texts; None for metrics of the reference's likelihood.
    """

    per_example: tuple[str, ...] = ("targets",)
    tokenizer: Any
    targets: list[str]
    beams: int
    scorer: TextScorer | None
    max_new_tokens: int | None = None
    first_token: int | None = None  # forced, the language of a multilingual model

    def scored_by(self, name: str, metrics: dict[str, Metric], beams: int, **scoring: Any) -> Metric:
        """Choose how texts are decoded and scored."""
        if beams < 1:
            raise BadData(f"beams must be at least 1, not {beams}")
        chosen, self.beams = pick(metrics, name), beams
        self.generates = name not in ("perplexity", "loss")
        self.drafts = self.generates and beams == 1
        self.scorer = TextScorer(name, **scoring) if self.generates else None
        return chosen if self.scorer is None else self.scorer.signed(chosen)

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

    def relabeled(self, labels: Sequence[Any]) -> Generation:
        """Other references, given as token ids; what a model wrote at its limit has no end."""
        part = copy.copy(self)
        part.labels = [list(map(int, ids)) for ids in labels]
        part.targets = self.tokenizer.batch_decode(part.labels, skip_special_tokens=True)
        return part

    def signature(self) -> dict[str, Any]:
        return {**super().signature(), "targets": digest(self.targets)}  # whole; labels can be truncated


class Translation(Generation):
    """Generate a translation and compare it with the reference; for loss and perplexity, predict the reference.

    >>> from headcount.tasks.text import word_tokenizer
    >>> rows = [{"en": "a dog", "fr": "un chien"}, {"en": "dog", "fr": "chien"}]
    >>> task = Translation(rows, word_tokenizer("a dog un chien", "marian"), source="en", target="fr")
    >>> task.batch([0, 1]).labels.tolist()
    [[7, 8, 2], [8, 2, -100]]
    >>> sums = task.statistics(torch.tensor([[7, 8, 2], [8, 2, 0]]), task.batch([0, 1])).sum(0)
    >>> sums[:2].tolist()  # words produced, words of the references
    [3.0, 3.0]

    data: whatever `Rows.of` reads. target_data: a second, line-aligned file with the targets.
    source, target: columns by name or number; guessed if left out.
    metric: bleu, chrf, rouge1, rouge2, rougeL, exact_match, perplexity or loss.
    beams: 1 decodes greedily. The rest of the model's generation_config is respected.
    max_new_tokens: by default 1.5 times the source's tokens plus 20, and never beyond the model's positions. Each
        example has its own limit, so an output never depends on what else is in its batch.
    max_length: longer sources, and for the loss longer targets, are truncated to this many tokens, with a remark.
    source_language, target_language: codes of a multilingual tokenizer (mBART: "en_XX", M2M100: "en"); the target's
        language token is forced as the first one.
    tokenize: sacrebleu's tokenizer for BLEU, such as "13a", "zh", "ja-mecab", "char".
    prefix: put before every source, as T5 expects ("summarize: ").
    labels: False if the data has no targets.
    """

    kind = "translation"

    def __init__(
        self, data: Any, tokenizer: Any, *, source: Column = None, target: Column = None, target_data: Any = None,
        metric: str = "bleu", beams: int = 1, max_new_tokens: int | None = None, max_length: int | None = None,
        source_language: str | None = None, target_language: str | None = None, forced_bos_token_id: int | None = None,
        tokenize: str = "13a", prefix: str = "", split: str | None = None, labels: bool = True,
    ) -> None:  # fmt: skip
        rows = Rows.of(data, split)
        if target_data is not None:
            rows = aligned(rows, Rows.of(target_data, split), source, target)
            source, target = "source", "target"
        if labels:
            source, target, on_columns = find_translation(rows, source, target)
        else:
            source, on_columns = find_column(rows, source, "source", (*SOURCES, *LANGUAGES, *TEXTS), is_text)
        self.targets = texts_of(rows, str(target)) if labels else [""] * len(rows)
        with languages_set(tokenizer, source_language, target_language):
            sources = [prefix + text for text in texts_of(rows, source)]
            features, on_sources = tokenized(rows, tokenizer, [sources], max_length)
            expected, on_targets = tokenized(rows, tokenizer, [self.targets], max_length, target=True)
        self.max_new_tokens = max_new_tokens
        self.first_token = forced_bos_token_id
        if target_language is not None and forced_bos_token_id is None:
            self.first_token = language_token(tokenizer, target_language)
        chosen = self.scored_by(metric, TRANSLATION, beams, tokenize=tokenize)
        super().__init__(
            features,
            expected["input_ids"],
            metric=chosen,
            rows=rows,
            columns={"source": source, "target": target},
            tokenizer=tokenizer,
            content=rows.table[source],
            remarks=[*on_columns, *on_sources],
            settings={
                "beams": beams,
                "max_new_tokens": max_new_tokens or "1.5 x source + 20",
                "forced_bos_token_id": self.first_token,
                **({"prefix": prefix} if prefix else {}),
            },
        )
        self.remarks += [f"targets: {remark}" for remark in on_targets]


class Summarization(Translation):
    """Summaries, and any other text made of a text: a `Translation` that is scored by ROUGE unless told otherwise.

    >>> from headcount.tasks.text import word_tokenizer
    >>> rows = [{"document": "a dog ran", "summary": "dog"}]
    >>> Summarization(rows, word_tokenizer("a dog ran", "marian"), metric="exact_match").targets
    ['dog']
    """

    kind = "summarization"

    def __init__(self, data: Any, tokenizer: Any, *, metric: str = "rougeL", **options: Any) -> None:
        super().__init__(data, tokenizer, metric=metric, **options)


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


def generator(model: Any) -> Callable[..., Any]:
    """The `generate` that all models share: Whisper's own is made for long recordings, and cannot be taken apart."""
    shared: Any = GenerationMixin.generate
    return partial(shared, model) if isinstance(model, GenerationMixin) else model.generate


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
