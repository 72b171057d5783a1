"""Sentences as the tokens that a model reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from headcount.errors import BadData, HeadcountError
from headcount.roles.sentences import Sentence
from headcount.tasks.fit import embedding_rows, positions
from headcount.tasks.tokens import length_limit


@dataclass(frozen=True)
class Tokens:
    """What one side of a site reads: ids (T,), which of them are pieces of words, and to which word each belongs.

    spans: (T, 2) characters of the text, None for text that the model has made itself.
    """

    ids: np.ndarray
    is_word: np.ndarray
    spans: np.ndarray | None = None


@dataclass(frozen=True)
class Encoded:
    """Sentences and their tokens, which engines cut into shards."""

    sentences: tuple[Sentence, ...]
    tokens: tuple[Tokens, ...]

    def __len__(self) -> int:
        return len(self.sentences)

    @cached_property
    def lengths(self) -> list[int]:
        return [len(one.ids) for one in self.tokens]

    def subset(self, indices: Sequence[int]) -> Encoded:
        return Encoded(tuple(self.sentences[i] for i in indices), tuple(self.tokens[i] for i in indices))


def encode(
    model: Any, tokenizer: Any, sentences: tuple[Sentence, ...], max_length: int | None = None
) -> tuple[Encoded, list[str]]:
    """The tokens of every sentence, and what the user should know of them."""
    limits = [length_limit(tokenizer, max_length), positions(model)]
    limit = min((n for n in limits if n is not None), default=None)
    options: dict[str, Any] = {} if limit is None else {"truncation": True, "max_length": limit}
    fast = bool(getattr(tokenizer, "is_fast", False))
    if not fast and any(one.relations for one in sentences):
        raise HeadcountError(
            f"{type(tokenizer).__name__} does not say where its pieces are in the text, so they cannot be "
            "joined to words; use a fast tokenizer"
        )
    texts = [one.text for one in sentences]
    encoded = tokenizer(texts, return_offsets_mapping=fast, verbose=False, **options)
    rows, cut, special = embedding_rows(model), 0, list(special_ids(tokenizer))
    found = []
    for place, (sentence, ids) in enumerate(zip(sentences, encoded["input_ids"], strict=True)):
        if not ids:
            raise BadData(f"{sentence.place}: the text is empty")
        if rows is not None and max(ids) >= rows:
            raise BadData(
                f"the tokenizer does not fit the model: {sentence.place} has token id {max(ids)}, "
                f"the model has embeddings for {rows} tokens"
            )
        spans = np.array(encoded["offset_mapping"][place] if fast else [(0, 0)] * len(ids))
        cut += len(ids) == limit
        array = np.array(ids)
        found.append(Tokens(array, ~np.isin(array, special), spans))
    remarks = [f"{cut} of {len(found)} sentences fill the limit of {limit} tokens, or are cut to it"] if cut else []
    return Encoded(sentences, tuple(found)), remarks


def special_ids(tokenizer: Any) -> set[int]:
    """The ids that stand for no words."""
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id, tokenizer.mask_token_id}
