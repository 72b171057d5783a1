"""A tokenizer of whole words: examples, demos and tests need no download."""

from __future__ import annotations

from typing import Any


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
