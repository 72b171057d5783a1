"""`load_task`: a task from its kind and the data; what is left out is guessed, or taken from the model.

To add a task, write its file and add an entry to `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from transformers.models.auto import modeling_auto

from headcount.errors import BadData, HeadcountError, unknown
from headcount.structure import is_any_of, position_limit
from headcount.tasks.classification import Classification, refuse_other_outputs
from headcount.tasks.columns import Column
from headcount.tasks.language import LANGUAGE_MODELS, LanguageModeling
from headcount.tasks.rows import Rows, aligned
from headcount.tasks.task import Task
from headcount.tasks.text import length_limit, refuse_non_tokenizer
from headcount.tasks.translation import Translation


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
    beams: int = 1,
    max_length: int | None = None,
    target_data: Any = None,
    **options: Any,
) -> Task:
    """The task of that kind on this data, fitted to the model and checked against it if one is given.

    >>> from headcount.tasks.toy import word_tokenizer
    >>> rows = [{"sentence": "fine", "label": 1}, {"sentence": "dull", "label": 0}]
    >>> load_task("classification", rows, word_tokenizer("fine dull"), metric="matthews").metric.name
    'matthews'

    kind: "classification", "translation" or "language"; None guesses from the model's class.
    data, target_data: a file, a datasets.Dataset, a pandas.DataFrame, a list of dicts, a directory, or a hub id
        ("id:configuration").
    limit, seed: at most this many examples, a random sample by the seed; with seed=None the first ones.
    options: the task's columns by name or number, guessed if left out (text, pair and label of a classification, source
        and target of a translation, text of a language model); and what else the task's class takes.
    """
    chosen = find_kind(kind, model)
    refuse_non_tokenizer(tokenizer)
    named = {name: options.pop(name) for name in COLUMNS & options.keys()}
    columns = {name: column for name, column in named.items() if column is not None}
    _refuse_unused(chosen, columns if target_data is None else {**columns, "target_data": target_data})
    rows = Rows.of(data, split)
    if target_data is not None:
        rows = aligned(rows, Rows.of(target_data, split), columns.pop("source", None), columns.pop("target", None))
    limits = [length_limit(tokenizer, max_length), None if model is None else position_limit(model)]
    task = chosen.build(
        Request(
            rows.take(limit, seed),
            tokenizer,
            model,
            max_length=min((n for n in limits if n is not None), default=None),
            beams=beams,
            seed=seed or 0,
            columns=columns,
            options=options if metric is None else {"metric": metric, **options},
        )
    )
    if beams > 1 and not (task.generates and getattr(task, "beams", beams) == beams):
        what = f"a {chosen.name} task measured by {task.metric.name}"
        raise BadData(f"{what} decodes nothing, so {beams} beams have no effect", advice="leave out {beams}")
    if model is not None:
        task.check(model)
    return task


@dataclass(frozen=True)
class Request:
    """What `load_task` was asked for, ready to build a task from.

    max_length: the least of what the caller, the tokenizer and the model allow; None if nothing limits it.
    columns: those that the caller named. options: what else the task's class takes, `metric` included.
    """

    rows: Rows
    tokenizer: Any
    model: Any
    max_length: int | None
    beams: int
    seed: int
    columns: dict[str, Column]
    options: dict[str, Any]


@dataclass(frozen=True)
class TaskKind:
    """A kind of task that `load_task` can build.

    build: makes the task. columns: the arguments of `load_task` that name its data; any other column is refused.
    models: names of the model classes in transformers that are made for it, from which the kind is guessed.
    aliases: other names for the kind.
    """

    name: str
    build: Callable[[Request], Task]
    columns: tuple[str, ...]
    models: Collection[str] = ()
    aliases: tuple[str, ...] = ()


def _classification(asked: Request) -> Task:
    config = getattr(asked.model, "config", None)
    if config is not None:
        refuse_other_outputs(config)  # before columns are guessed for a model that does not classify
    classes = {name: getattr(config, name, None) for name in ("label2id", "num_labels")}
    given = {**asked.columns, **classes, **asked.options}
    return Classification(asked.rows, asked.tokenizer, max_length=asked.max_length, **given)


def _translation(asked: Request) -> Task:
    given: dict[str, Any] = {**asked.columns, **asked.options}
    return Translation(asked.rows, asked.tokenizer, beams=asked.beams, max_length=asked.max_length, **given)


def _language(asked: Request, masked: bool | None = None) -> Task:
    if masked is None and asked.model is not None:
        masked = {"masked": True, "causal": False}.get(guess_kind(asked.model) or "")
    given = {"masked": masked, "block": asked.max_length, "seed": asked.seed, **asked.columns, **asked.options}
    return LanguageModeling(asked.rows, asked.tokenizer, **given)


# In the order in which a model's class is looked up: BART's serves both translation and masked language modelling.
KINDS = (
    TaskKind(
        "classification",
        _classification,
        columns=("text", "pair", "label"),
        models=modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.values(),
        aliases=("text-classification", "sequence-classification"),
    ),
    TaskKind(
        "translation",
        _translation,
        columns=("source", "target", "target_data"),
        models=modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.values(),
        aliases=("summarization", "seq2seq", "text2text"),
    ),
    TaskKind(
        "masked",
        lambda asked: _language(asked, masked=True),
        columns=("text",),
        models=LANGUAGE_MODELS["masked"],
        aliases=("masked-lm", "fill-mask"),
    ),
    TaskKind(
        "causal",
        lambda asked: _language(asked, masked=False),
        columns=("text",),
        models=LANGUAGE_MODELS["causal"],
        aliases=("causal-lm", "text-generation"),
    ),
    TaskKind(
        "language",
        _language,
        columns=("text",),
        models=LANGUAGE_MODELS["masked"] | LANGUAGE_MODELS["causal"],
        aliases=("language-modeling", "lm"),
    ),
)
COLUMNS = {column for kind in KINDS for column in kind.columns}


def find_kind(name: str | None, model: Any = None) -> TaskKind:
    """The kind of that name or alias; for None, the one that the model's class is made for.

    >>> find_kind("text_classification").name
    'classification'

    A class of transformers for which there is no task, or only another one, is refused: it would fail later, or give
    numbers that mean nothing. A class of your own is trusted to fit the kind that you name.
    """
    known = {alias: kind for kind in KINDS for alias in (kind.name, *kind.aliases)}
    if name is not None and not isinstance(name, str):
        raise HeadcountError(f"the kind of task is {name!r:.60}", advice="give {kind} a name, or None to guess it")
    written = None if name is None else name.lower().replace("_", "-")
    if written is not None and written not in known:
        raise HeadcountError(unknown("task", str(name), [kind.name for kind in KINDS]))
    if model is None:
        if written is None:
            names = ", ".join(kind.name for kind in KINDS)
            raise HeadcountError("the kind of task is unknown without a model", advice=f"pass {{kind}}, one of {names}")
        return known[written]
    fitting, cls = kinds_of(model), type(model).__name__
    if not fitting and (written is None or type(model).__module__.startswith("transformers.")):
        raise HeadcountError(f"headcount has no task for {cls}", advice="docs/tasks.md shows how to write one")
    chosen = fitting[0] if written is None else known[written]
    if fitting and chosen not in fitting:
        names = " or ".join(kind.name for kind in fitting)
        raise HeadcountError(f"{cls} is not made for {chosen.name}, but for {names}", advice="change {kind}")
    return chosen


def kinds_of(model: Any) -> list[TaskKind]:
    """The kinds of task that a model's class is made for, the likeliest first."""
    return [kind for kind in KINDS if is_any_of(model, kind.models)]


def guess_kind(model: Any) -> str | None:
    """The kind of task that a model's class is made for; None if it does not tell.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> guess_kind(GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=4, vocab_size=8)))
    'causal'
    """
    return next((kind.name for kind in kinds_of(model)), None)


def _refuse_unused(kind: TaskKind, given: Mapping[str, Any]) -> None:
    """A column that the task does not use is a mistake, not something to ignore."""
    for name, value in given.items():
        if name not in kind.columns:
            used = ", ".join(f"{{{column}}}" for column in kind.columns)
            raise BadData(f"a {kind.name} task does not use {name} (given: {value!r})", advice=f"it uses {used}")
