"""Texts as tokens: tokenized once, truncated texts counted, padding chosen; and a tokenizer that needs no download."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headcount.errors import BadData, HeadcountError, counted
from headcount.tasks.columns import Column, find_text
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


def read_texts(
    rows: Rows, tokenizer: Any, text: Column, pair: Column, label: Column, max_length: int | None, remarks: list[str]
) -> dict[str, Any]:
    """What `BaseTask` is given for examples that are a text or a pair of texts, beside their labels and a metric.

    >>> rows = Rows({"sentence": ["fine", "dull"], "label": [1, 0]})
    >>> given = read_texts(rows, word_tokenizer("fine dull"), None, None, "label", None, ["label: column 'label'"])
    >>> given["columns"], given["remarks"]
    ({'text': 'sentence', 'pair': None, 'label': 'label'}, ["text: column 'sentence'", "label: column 'label'"])

    remarks: on the labels.
    """
    text, pair, on_text = find_text(rows, text, pair, None if label is None else str(label))
    texts = [texts_of(rows, column) for column in (text, pair) if column is not None]
    features, on_length = tokenized(rows, tokenizer, texts, max_length)
    return {
        "features": features,
        "rows": rows,
        "columns": {"text": text, "pair": pair, "label": label},
        "tokenizer": tokenizer,
        "content": list(zip(*texts, strict=True)),
        "remarks": [*on_text, *remarks, *on_length],
    }


def tokenized(
    rows: Rows,
    tokenizer: Any,
    texts: Sequence[list[str]],
    max_length: int | None = None,
    target: bool = False,
) -> tuple[dict[str, list[list[int]]], list[str]]:
    """The model's inputs for each text or pair of texts, and a remark on how many were truncated.

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
                f"a limit of {counted(limit, 'token')} leaves no room for text beside the special tokens",
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


def word_tokenizer(words: str, style: str = "bert") -> Any:
    """A fast tokenizer that knows these words and nothing else.

    >>> tokenizer = word_tokenizer("a fine film")
    >>> tokenizer("a fine dish").input_ids, tokenizer.convert_ids_to_tokens([0, 1, 2, 3, 4, 5])
    ([1, 5, 6, 3, 2], ['<pad>', '<s>', '</s>', '<unk>', '<mask>', 'a'])

    style: "bert" puts <s> and </s> around a text or pair, "marian" ends a text with </s>, "gpt" adds
        nothing and has no pad token.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    specials = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys([*specials, *words.split()]))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [("<s>", 1), ("</s>", 2)]
    if style == "bert":
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=ends
        )
    if style == "marian":
        backend.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=ends)
    names = {"unk_token": "<unk>", "eos_token": "</s>"}
    if style != "gpt":
        names |= {"pad_token": "<pad>"}
    if style == "bert":
        names |= {"bos_token": "<s>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
    inputs = ["input_ids", *["token_type_ids"] * (style == "bert"), "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=inputs, **names)
