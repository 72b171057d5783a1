"""Tokenizers of a few words."""

import pytest

from headcount.tasks.text import word_tokenizer

WORDS = "a the fine dull film dog cat runs sleeps un le chien chat court dort bien mal"


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer(WORDS)


@pytest.fixture(scope="module")
def gpt_tokenizer():
    return word_tokenizer(WORDS, "gpt")


@pytest.fixture(scope="module")
def marian_tokenizer():
    return word_tokenizer(WORDS, "marian")
