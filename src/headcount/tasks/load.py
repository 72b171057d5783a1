"""A task from a few words: its kind and columns are guessed, its limits and labels are the model's."""

from __future__ import annotations

from typing import Any

from headcount.errors import BadData, HeadcountError, unknown
from headcount.tasks.classification import Classification
from headcount.tasks.columns import Column
from headcount.tasks.data import Rows, aligned
from headcount.tasks.language import LanguageModeling
from headcount.tasks.task import Task
from headcount.tasks.text import kind_of, length_limit, positions
from headcount.tasks.translation import Translation

ALIASES = {
    "classification": "classification",
    "text-classification": "classification",
    "sequence-classification": "classification",
    "translation": "translation",
    "summarization": "translation",
    "seq2seq": "translation",
    "text2text": "translation",
    "language": "language",
    "language-modeling": "language",
    "lm": "language",
    "causal": "causal",
    "causal-lm": "causal",
    "text-generation": "causal",
    "masked": "masked",
    "masked-lm": "masked",
    "fill-mask": "masked",
}


def load_task(
    kind: str | None,
    data: Any,
    tokenizer: Any,
    model: Any = None,
    *,
    split: str | None = None,
    limit: int | None = None,
    seed: int | None = 0,
    metric: str | None = None,
    text: Column = None,
    pair: Column = None,
    label: Column = None,
    source: Column = None,
    target: Column = None,
    target_data: Any = None,
    beams: int = 1,
    max_length: int | None = None,
    **options: Any,
) -> Task:
    """The task of that kind on this data, fitted to the model and checked against it if one is given.

    >>> from headcount.tasks.toy import word_tokenizer
    >>> rows = [{"sentence": "fine", "label": 1}, {"sentence": "dull", "label": 0}]
    >>> load_task("classification", rows, word_tokenizer("fine dull"), metric="matthews").metric.name
    'matthews'

    kind: "classification", "translation" or "language"; None guesses from the model's class.
    data, target_data: a file, a datasets.Dataset, a list of dicts, a directory, or a hub id ("id:configuration").
    limit, seed: only so many examples, chosen at random by the seed; the first ones with seed=None.
    text, pair, label, source, target: columns by name or number, guessed if left out.
    options: what else the task's own class takes.
    """
    kind = _kind(kind, model)
    _refuse_others(kind, text=text, pair=pair, label=label, source=source, target=target, target_data=target_data)
    rows = Rows.of(data, split)
    if target_data is not None:
        rows = aligned(rows, Rows.of(target_data, split), source, target)
        source = target = None
    rows = rows.take(limit, seed)
    if metric is not None:
        options["metric"] = metric
    limits = [length_limit(tokenizer, max_length), None if model is None else positions(model)]
    length = min((n for n in limits if n is not None), default=None)
    task: Task
    if kind == "classification":
        config = getattr(model, "config", None)
        options = {"label2id": getattr(config, "label2id", None), **options}
        options = {"num_labels": getattr(config, "num_labels", None), **options}
        task = Classification(rows, tokenizer, text=text, pair=pair, label=label, max_length=length, **options)
    elif kind == "translation":
        task = Translation(rows, tokenizer, source=source, target=target, beams=beams, max_length=length, **options)
    else:
        masked = {"masked": True, "causal": False}.get(kind)
        options = {"masked": masked, "block": length, "seed": seed or 0, **options}
        task = LanguageModeling(rows, tokenizer, text=text, **options)
    if model is not None:
        task.check(model)
    return task


def _kind(kind: str | None, model: Any) -> str:
    seen = None if model is None else kind_of(model)
    if kind is None:
        if seen is None:
            what = "no model to guess from" if model is None else f"cannot tell from {type(model).__name__}"
            raise HeadcountError(f"what is the task? {what}: pass classification, translation or language")
        return seen
    if kind.lower().replace("_", "-") not in ALIASES:
        raise HeadcountError(unknown("task", kind, {"classification", "translation", "language"}))
    named = ALIASES[kind.lower().replace("_", "-")]
    return seen if named == "language" and seen in ("causal", "masked") else named


def _refuse_others(kind: str, **given: Any) -> None:
    """A column that this kind of task has no use for is a mistake, not to be passed over."""
    uses = {"classification": {"text", "pair", "label"}, "translation": {"source", "target", "target_data"}}
    for name, value in given.items():
        if value is not None and name not in uses.get(kind, {"text"}):
            raise BadData(f"{name}={value!r} means nothing to a task of kind {kind!r}")
