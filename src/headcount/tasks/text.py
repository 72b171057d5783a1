"""Texts to token ids, once, with what was cut off counted."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor
from transformers.models.auto import modeling_auto

from headcount.errors import BadData
from headcount.structure import position_limit
from headcount.tasks.data import Rows

KINDS = {
    "classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "translation": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
}


def texts_of(rows: Rows, column: str) -> list[str]:
    """A column's texts; anything else in it is refused, with its place."""
    values = rows.table[column]
    for i, value in enumerate(values):
        if not isinstance(value, str):
            raise BadData(f"{rows.place(i, column)}: {value!r} is no text")
    return values


def tokenized(
    rows: Rows,
    tokenizer: Any,
    texts: Sequence[list[str]],
    max_length: int | None = None,
    target: bool = False,
) -> tuple[dict[str, list[list[int]]], list[str]]:
    """What the model is given for each text or pair of texts, and how many had to be cut.

    >>> from headcount.tasks.toy import word_tokenizer
    >>> rows = Rows({"text": ["a fine film", "dull"]})
    >>> tokenized(rows, word_tokenizer("a fine dull film"), [rows.column("text")], max_length=4)[1]
    ['1 of 2 texts cut to 4 tokens']

    target: the texts are in the language to translate to (`text_target` of the tokenizer).
    """

    def encode(parts: Sequence[list[str]], **options: Any) -> dict[str, list[list[int]]]:
        if target:
            return dict(tokenizer(text_target=parts[0], verbose=False, **options))
        return dict(tokenizer(*parts, verbose=False, **options))

    features = encode(texts)
    limit = length_limit(tokenizer, max_length)
    long = [] if limit is None else [i for i, ids in enumerate(features["input_ids"]) if len(ids) > limit]
    if long:
        short = encode([[part[i] for i in long] for part in texts], truncation=True, max_length=limit)
        for name, values in short.items():
            for i, value in zip(long, values, strict=True):
                features[name][i] = value
        if limit is not None and any(len(features["input_ids"][i]) > limit for i in long):
            raise BadData(
                f"a limit of {limit} tokens leaves no room for text beside the special tokens; raise max_length"
            )
    for i, ids in enumerate(features["input_ids"]):
        if not ids:
            raise BadData(f"{rows.place(i)}: the text is empty")
    return features, [f"{len(long)} of {len(rows)} texts cut to {limit} tokens"] if long else []


def length_limit(tokenizer: Any, max_length: int | None) -> int | None:
    """The given limit, or the tokenizer's own where it has one (a huge number means that it has none)."""
    if max_length is not None:
        if max_length < 1:
            raise BadData(f"max_length must be at least 1, not {max_length}")
        return max_length
    return tokenizer.model_max_length if tokenizer.model_max_length < 10**9 else None


def pad_token(tokenizer: Any) -> tuple[int, list[str]]:
    """The token to pad with; GPT-2 and its kin have none, and their end of text serves."""
    if tokenizer.pad_token_id is not None:
        return tokenizer.pad_token_id, []
    if tokenizer.eos_token_id is None:
        raise BadData("the tokenizer has neither a pad token nor an end of text to pad with; set tokenizer.pad_token")
    return tokenizer.eos_token_id, [f"the tokenizer has no pad token: {tokenizer.eos_token!r} is used"]


def embedding_rows(model: Any) -> int | None:
    """How many token ids the model has embeddings for; None where it has no such thing."""
    try:
        return model.get_input_embeddings().weight.shape[0]
    except (AttributeError, NotImplementedError):
        return None


def positions(model: Any) -> int | None:
    """How many tokens the model can read at once; None where nothing limits it (relative positions)."""
    return position_limit(model)


def output_rows(model: Any) -> int | None:
    """How many token ids the model can produce."""
    head = model.get_output_embeddings()
    return None if head is None else head.weight.shape[0]


def without_cache(model: Any) -> dict[str, bool]:
    """The argument that spares a model keeping keys and values that nobody will read."""
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}


def kind_of(model: Any) -> str | None:
    """What a model's class is for: "classification", "translation", "causal", "masked", or None.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> kind_of(GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=4, vocab_size=8)))
    'causal'
    """
    names = {cls.__name__ for cls in type(model).__mro__}  # a user's subclass is what it inherits from
    for kind, known in KINDS.items():
        if names & set(known.values()):
            return kind
    return None


def decoder_inputs(model: Any, labels: Tensor) -> Tensor:
    """(B, T) what the decoder reads to predict the labels: the labels one step later, as the model does it.

    mBART starts with the last token of the labels, the others with their decoder_start_token_id.
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
    """Make each row end at its own limit, whatever else is in the batch.

    limits: (rows,), for beam search one for each beam.
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
def speaking(tokenizer: Any, source: str | None, target: str | None) -> Iterator[None]:
    """Set a multilingual tokenizer's languages, and set them back."""
    before = {}
    for name, language in (("src_lang", source), ("tgt_lang", target)):
        if language is not None:
            if not hasattr(tokenizer, name):
                raise BadData(f"{type(tokenizer).__name__} has no languages to choose from, so not {language!r}")
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
