"""`varied`: texts that a model was not trained on, made from those that it was, for a teacher to label.

A fine-tuned model has memorised its training texts: what it predicts on them is little more than their labels, and says
little about how it judges a new text. Its predictions and hidden states on variations of them do.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from headcount.tasks import BaseTask, Task

SPLICED = 0.5  # share of texts whose end is another text's
MASKED = 0.5  # share of the replaced tokens that become the mask token, if there is one
NEAR = 200  # how far apart in the order of lengths two spliced texts may be


def varied(task: Task, share: float, seed: Sequence[int]) -> Any:
    """The task with other texts of the same lengths; its labels stay, and no longer hold.

    >>> from headcount.tasks import Classification
    >>> from headcount.tasks.text import word_tokenizer
    >>> tokenizer = word_tokenizer("a fine dull film dog runs sleeps")
    >>> rows = [{"text": "a fine film runs", "label": 1}, {"text": "a dull dog sleeps", "label": 0}]
    >>> task = Classification(rows, tokenizer)
    >>> [tokenizer.decode(ids) for ids in varied(task, 0.2, [0]).features["input_ids"]]
    ['<s> dull <mask> film runs </s>', '<s> a fine film a </s>']

    Half of the texts end as another one of similar length does, from a random place on. Then tokens are replaced by
    others, drawn as often as they occur in the task, or by the mask token; their share is drawn for each text, between
    0 and twice `share`. Special tokens stay where they are.

    task: one that `has_words`. seed: the same numbers give the same texts.
    """
    words_of: Any = task
    features, tokenizer = words_of.features, words_of.tokenizer
    rng, special = np.random.default_rng(list(seed)), np.array(sorted(tokenizer.all_special_ids))
    texts = [np.array(ids) for ids in features["input_ids"]]
    words = [~np.isin(ids, special) for ids in texts]  # (T,) of each text, which tokens may change
    pool = np.concatenate([ids[there] for ids, there in zip(texts, words, strict=True)])
    if not len(pool):
        return task
    order = np.argsort([len(ids) for ids in texts], kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    mask = getattr(tokenizer, "mask_token_id", None)
    made = []
    for number, (ids, there) in enumerate(zip(texts, words, strict=True)):
        ids = ids.copy()
        if rng.random() < SPLICED:
            other = order[np.clip(rank[number] + rng.integers(-NEAR, NEAR + 1), 0, len(order) - 1)]
            _splice(ids, there, texts[other], words[other], rng)
        hit = there & (rng.random(len(ids)) < 2 * share * rng.random())
        ids[hit] = rng.choice(pool, hit.sum())
        if mask is not None:
            ids[hit & (rng.random(len(ids)) < MASKED)] = mask
        made.append(ids.tolist())
    part: Any = copy.copy(task)
    part.features = {**features, "input_ids": made}
    return part


def has_words(task: Task) -> bool:
    """Whether a task makes its batches of token ids alone, and has a tokenizer that tells special ones."""
    batches = getattr(type(task), "batch", None) is BaseTask.batch
    return batches and "input_ids" in getattr(task, "features", ()) and hasattr(task, "tokenizer")


def _splice(ids: Any, there: Any, other: Any, words: Any, rng: np.random.Generator) -> None:
    """Let a text end as another one does: from a random place on, aligned at their ends, where both have words."""
    shared = min(len(ids), len(other))
    reach = int(rng.integers(0, shared + 1))
    if reach:
        both = there[-reach:] & words[-reach:]
        ids[-reach:][both] = other[-reach:][both]
