"""Small models that can be explored, each with its tokenizer and a text, by the kind of model."""

from __future__ import annotations

from typing import Any, NamedTuple

from transformers import BertModel

import tiny_models
from headcount.explore import Inspector
from headcount.tasks.toy import word_tokenizer
from toy_jobs import JOBS, WORDS

# As many words as the models have embeddings for: every token that they write has a name.
VOCABULARY = f"{WORDS} one two three four five six seven eight"
TEXT = ("a fine dog runs the film sleeps", None)


class Explored(NamedTuple):
    model: Any
    tokenizer: Any
    style: str

    @property
    def inspector(self) -> Inspector:
        return Inspector(self.model, self.tokenizer)


STYLES = {"translator": "marian", "causal": "gpt", "decoder that classifies": "bert"}
KINDS = [*JOBS, "embedding", "score", "several classes"]


def build(kind: str) -> Explored:
    style = STYLES.get(kind, "bert")
    make = {
        "embedding": lambda: tiny_models.bert(BertModel),
        "score": lambda: tiny_models.bert(num_labels=1),
        "several classes": lambda: tiny_models.bert(num_labels=3, problem_type="multi_label_classification"),
        "causal": lambda: tiny_models.gpt(n_positions=64),
    }.get(kind) or JOBS[kind][0]
    return Explored(make(), word_tokenizer(VOCABULARY, style), style)
