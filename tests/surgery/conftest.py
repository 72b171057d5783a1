"""A tokenizer of the zoo's size, and quiet progress bars."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

import zoo


@pytest.fixture(scope="package", autouse=True)
def quiet():
    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


@pytest.fixture(scope="package")
def tokenizer():
    """The zoo's token numbers as words: `w4` to `w60`."""
    special = {"<s>": zoo.BOS, "<pad>": zoo.PAD, "<unk>": 2, "</s>": zoo.EOS}
    words = Tokenizer(models.WordLevel({**special, **{f"w{n}": n for n in range(4, zoo.VOCAB)}}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"bos_token": "<s>", "pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=words, padding_side="left", model_max_length=32, **names)
