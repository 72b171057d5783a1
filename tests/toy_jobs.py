"""Small jobs that need no download: tiny models, word tokenizers, and data that a model can be a little right about."""

from __future__ import annotations

import itertools
from typing import Any

import tiny_models
from headcount.tasks import Classification, LanguageModeling, Translation
from headcount.tasks.text import word_tokenizer

WORDS = "a the fine dull film dog cat runs sleeps un le chien chat court dort bien mal"
SUBJECTS, VERBS, ENDS = ("dog", "cat", "film", "a", "the"), ("runs", "sleeps"), ("fine", "dull", "bien", "mal")


def sentences(start: int, n: int) -> list[str]:
    """Different sentences of two to six words; other starts give other sentences."""
    every = [
        " ".join(words) for k in (2, 3) for words in itertools.product(SUBJECTS, VERBS, ENDS, *[SUBJECTS] * (k - 2))
    ]
    every += [f"{text} {more}" for text in every for more in ("dog dog", "the cat runs")]
    return every[start::7][:n]


def classification(start: int = 0, n: int = 24, metric: str = "accuracy") -> Classification:
    rows = [{"text": text, "label": int("fine" in text or "bien" in text)} for text in sentences(start, n)]
    return Classification(rows, word_tokenizer(WORDS), metric=metric)


def translation(start: int = 0, n: int = 16, metric: str = "bleu") -> Translation:
    rows = [{"source": text, "target": f"le {text} court"} for text in sentences(start, n)]
    return Translation(rows, word_tokenizer(WORDS, "marian"), metric=metric)


def language(start: int = 0, n: int = 16, masked: bool = False) -> LanguageModeling:
    rows = [{"text": text} for text in sentences(start, n)]
    return LanguageModeling(rows, word_tokenizer(WORDS, "bert" if masked else "gpt"), masked=masked)


def masked_language(start: int = 0, n: int = 16) -> LanguageModeling:
    return language(start, n, masked=True)


JOBS: dict[str, tuple[Any, Any]] = {
    "classifier": (lambda: tiny_models.bert(pad_token_id=0), classification),
    "decoder that classifies": (tiny_models.gpt_classifier, classification),
    "translator": (tiny_models.marian, translation),
    "causal": (tiny_models.gpt, language),
    "masked": (tiny_models.masked_bert, masked_language),
}
