"""Small models that can be explored, each with its tokenizer and a text, by the kind of model."""

from __future__ import annotations

from typing import Any, NamedTuple

from transformers import BertForQuestionAnswering, BertForTokenClassification, BertModel

import tiny_models
from headcount.explore import Inspector
from headcount.tasks.text import word_tokenizer
from toy_jobs import JOBS, WORDS

# As many words as the models have embeddings for: every token that they write has a name.
VOCABULARY = f"{WORDS} one two three four five six seven who"
TEXT = ("a fine dog runs the film sleeps", None)


class Explored(NamedTuple):
    model: Any
    tokenizer: Any
    style: str

    @property
    def text(self) -> tuple[str, str | None]:
        """A text that this kind of model can read."""
        return ("who runs", TEXT[0]) if isinstance(self.model, BertForQuestionAnswering) else TEXT

    @property
    def inspector(self) -> Inspector:
        return Inspector(self.model, self.tokenizer)


TAGS = {0: "O", 1: "B-person", 2: "I-person"}
STYLES = {"translator": "marian", "causal": "gpt", "decoder that classifies": "bert"}
KINDS = [*JOBS, "embedding", "score", "several classes", "tagger", "answering"]


def build(kind: str) -> Explored:
    style = STYLES.get(kind, "bert")
    make = {
        "embedding": lambda: tiny_models.bert(BertModel),
        "tagger": lambda: tiny_models.bert(BertForTokenClassification, num_labels=3, id2label=TAGS),
        "answering": lambda: tiny_models.bert(BertForQuestionAnswering),
        "score": lambda: tiny_models.bert(num_labels=1),
        "several classes": lambda: tiny_models.bert(num_labels=3, problem_type="multi_label_classification"),
        "causal": lambda: tiny_models.gpt(n_positions=64),
    }.get(kind) or JOBS[kind][0]
    return Explored(make(), word_tokenizer(VOCABULARY, style), style)
