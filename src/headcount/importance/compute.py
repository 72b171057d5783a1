"""`importance`: score every head by one of several methods, with everything that the score is a mean of."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from headcount.anatomy import anatomy
from headcount.engine import RunDirectory, open_run
from headcount.errors import BadData, HeadcountError, unknown
from headcount.importance.methods import find_method
from headcount.importance.scores import Scores
from headcount.signature import model_signature, versions
from headcount.tasks import Task


def importance(
    model: nn.Module,
    task: Task,
    method: str = "gradient",
    *,
    run: str | Path | RunDirectory | None = None,
    progress: Callable[[float], None] | None = None,
    **options: Any,
) -> Scores:
    """Score every head: the higher, the more important.

    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> from headcount.tasks import Classification
    >>> from headcount.tasks.toy import word_tokenizer
    >>> config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=20, pad_token_id=0)
    >>> rows = [{"text": "a fine film", "label": 1}, {"text": "dull", "label": 0}]
    >>> task = Classification(rows, word_tokenizer("a fine dull film"))
    >>> scores = importance(BertForSequenceClassification(config).eval(), task)
    >>> scores
    <gradient scores of 8 heads, mean of 2 rows>
    >>> len(scores.order()), scores["encoder.1.3"] > 0
    (8, True)

    task: on data that no later choice is tested on; M19 uses training data.
    method: gradient (M19 eq. 2), fisher, oracle, relevance or confidence (V19), or random.
    options: the method's own; gradient: per="example", "token" or "batch"; relevance: steps of an example; confidence:
        exclude="end", "special" or "none"; random: seed.
    run: a run directory, in which finished shards of the data are kept and found again.
    progress: called with the share done, from 0 to 1.
    """
    chosen = find_method(method)
    takes = {name for name, p in inspect.signature(chosen.values).parameters.items() if p.kind is p.KEYWORD_ONLY}
    for name in options:
        if name not in takes:
            raise HeadcountError(unknown(f"option of {method}", name, takes - {"progress", "run"}))
    heads = anatomy(model).heads
    if not heads:
        raise HeadcountError("the model has no attention heads left: there is nothing to score")
    refuse_one_class(task)
    signature = {
        "model": model_signature(model),
        "task": task.signature(),
        "method": method,
        "options": options,
        "versions": versions(),
    }
    with open_run(run, signature) as directory:
        extra = {name: value for name, value in (("progress", progress), ("run", directory)) if name in takes}
        values = chosen.values(model, task, **options, **extra)
    keys = tuple(task.keys()) if chosen.reads_data else ()
    return Scores(heads, values, method, chosen.normalized, signature, keys)


def refuse_one_class(task: Task) -> None:
    """Examples of a single class say nothing on what tells the classes apart."""
    labels = getattr(task, "labels", None)
    if task.signature().get("task") == "classification" and labels is not None and len(set(labels)) < 2:
        raise BadData(f"all {len(labels)} examples have the label {labels[0]}: scores need examples of both classes")
