"""Texts as tokens: tokenized once, truncated texts counted, padding chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headcount.errors import BadData, HeadcountError
from headcount.tasks.rows import Rows


def refuse_non_tokenizer(tokenizer: Any) -> None:
    """Refuse what cannot turn texts into tokens, such as the name of a tokenizer."""
    if not callable(tokenizer):
        raise HeadcountError(
            f"the tokenizer is {tokenizer!r:.60}, not one that is loaded",
            advice="give {tokenizer} what AutoTokenizer.from_pretrained returns",
        )


def texts_of(rows: Rows, column: str) -> list[str]:
    """A column's texts; any other value is refused by its place."""
    values = rows.table[column]
    for i, value in enumerate(values):
        if not isinstance(value, str):
            raise BadData(f"{rows.place(i, column)}: expected a text, not {value!r}")
    return values


def tokenized(
    rows: Rows,
    tokenizer: Any,
    texts: Sequence[list[str]],
    max_length: int | None = None,
    target: bool = False,
) -> tuple[dict[str, list[list[int]]], list[str]]:
    """The model's inputs for each text or pair of texts, and a remark on how many were truncated.

    >>> from headcount.tasks.toy import word_tokenizer
    >>> rows = Rows({"text": ["a fine film", "dull"]})
    >>> tokenized(rows, word_tokenizer("a fine dull film"), [rows.column("text")], max_length=4)[1]
    ['1 of 2 texts truncated to 4 tokens']

    texts: one column of texts, or two for pairs.
    target: the texts are in the language to translate to (the tokenizer's `text_target`).
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
                f"a limit of {limit} tokens leaves no room for text beside the special tokens",
                advice="raise {max_length}",
            )
    for i, ids in enumerate(features["input_ids"]):
        if not ids:
            raise BadData(f"{rows.place(i)}: the text is empty")
    return features, [f"{len(long)} of {len(rows)} texts truncated to {limit} tokens"] if long else []


def length_limit(tokenizer: Any, max_length: int | None) -> int | None:
    """The given limit, or else the tokenizer's own (a huge number means that it has none)."""
    if max_length is not None:
        if max_length < 1:
            raise BadData(f"max_length must be at least 1, not {max_length}")
        return max_length
    return tokenizer.model_max_length if tokenizer.model_max_length < 10**9 else None


def pad_token(tokenizer: Any) -> tuple[int, list[str]]:
    """The token to pad with, and a remark if it is the end of text (GPT-2 and others have no pad token)."""
    if tokenizer.pad_token_id is not None:
        return tokenizer.pad_token_id, []
    if tokenizer.eos_token_id is None:
        raise BadData("the tokenizer has neither a pad token nor an end-of-text token; set tokenizer.pad_token")
    return tokenizer.eos_token_id, [f"the tokenizer has no pad token: {tokenizer.eos_token!r} is used"]
