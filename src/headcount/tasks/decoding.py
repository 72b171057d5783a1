"""What decoding needs of a model and a tokenizer beyond `generate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from headcount.errors import BadData


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
