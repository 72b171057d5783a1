"""Tiny stand-ins, so that examples, demos and tests need no download: a tokenizer of whole words, and a classifier."""

from __future__ import annotations

from typing import Any

from headcount.tasks.classification import Classification


def toy_classifier() -> tuple[Any, Classification]:
    """A random BERT of two layers of four heads, and a classification of two texts.

    >>> model, task = toy_classifier()
    >>> type(model).__name__, len(task)
    ('BertForSequenceClassification', 2)
    """
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=20, pad_token_id=0)
    rows = [{"text": "a fine film", "label": 1}, {"text": "dull", "label": 0}]
    return BertForSequenceClassification(config).eval(), Classification(rows, word_tokenizer("a fine dull film"))


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
