"""`load_task`: a task from its kind and the data; what is left out is guessed, or taken from the model.

To add a task, write its file and add an entry to `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from transformers.models.auto import modeling_auto as auto

from headcount.errors import BadData, HeadcountError, unknown
from headcount.structure import is_any_of, position_limit
from headcount.tasks import metrics
from headcount.tasks.answering import QuestionAnswering
from headcount.tasks.choice import LikeliestEnding, MultipleChoice
from headcount.tasks.classification import Classification, refuse_other_outputs
from headcount.tasks.columns import Column, has_choices
from headcount.tasks.language import LANGUAGE_MODELS, LanguageModeling
from headcount.tasks.perception import ImageClassification, SpeechRecognition
from headcount.tasks.rows import Rows, aligned
from headcount.tasks.similarity import Embedding, Pooling, Regression
from headcount.tasks.tagging import TokenClassification
from headcount.tasks.task import Task
from headcount.tasks.text import length_limit, refuse_non_tokenizer
from headcount.tasks.translation import Summarization, Translation
from headcount.tasks.without_labels import unlabeled


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
    labels: str = "data",
    **options: Any,
) -> Task:
    """The task of that kind on this data, fitted to the model and checked against it if one is given.

    >>> from headcount.tasks.text import word_tokenizer
    >>> rows = [{"sentence": "fine", "label": 1}, {"sentence": "dull", "label": 0}]
    >>> load_task("classification", rows, word_tokenizer("fine dull"), metric="matthews").metric.name
    'matthews'

    kind: the name of a kind in `KINDS` ("classification", "tagging", "translation", …) or one of its aliases; None
        guesses from the model's class and, where that serves several, from the data's columns.
    tokenizer: or the processor of a model of images or sounds.
    data, target_data: a file, a directory, a hub id ("id:configuration"), a Dataset, a DataFrame or a list of dicts.
    limit, seed: at most this many examples, a random sample by the seed; with seed=None the first ones.
    labels: "none" compares with the model's own predictions instead (`unlabeled`), so that the data needs no labels.
    options: the task's columns by name or number, guessed if left out (text, pair and label of a classification, source
        and target of a translation, text of a language model); and what else the task's class takes.
    """
    if labels not in ("data", "none"):
        raise HeadcountError(unknown("labels", labels, ("data", "none")))
    alone = labels == "none"
    if alone and model is None:
        raise HeadcountError("without labels, a model is the reference", advice="pass {model}")
    layout = None if kind is None and model is None else find_kind(kind, model).layout
    refuse_non_tokenizer(tokenizer)
    rows = Rows.of(data, split, layout)
    chosen = find_kind(kind, model, rows.names)
    if kind is None and chosen is not find_kind(None, model):
        rows.remarks.append(f"task: {chosen.name}, as the columns of {rows.source} say")
    named = {name: options.pop(name) for name in COLUMNS & options.keys()}
    columns = {name: column for name, column in named.items() if column is not None}
    _refuse_unused(chosen, columns if target_data is None else {**columns, "target_data": target_data})
    if metric is not None and not (alone and metric in metrics.UNLABELED):
        options["metric"] = metric
    if alone and chosen.labelled:
        options["labels"] = False
    if target_data is not None:
        rows = aligned(rows, Rows.of(target_data, split), columns.pop("source", None), columns.pop("target", None))
    limits = [max_length]
    if hasattr(tokenizer, "model_max_length"):  # images and sounds have their own size
        limits = [length_limit(tokenizer, max_length), None if model is None else position_limit(model)]
    task = chosen.build(
        Request(
            rows.take(limit, seed), tokenizer, model, min((n for n in limits if n is not None), default=None),
            beams=beams, seed=seed or 0, columns=columns, options=options,
        )
    )  # fmt: skip
    if beams > 1 and not (task.generates and getattr(task, "beams", beams) == beams):
        what = f"a {chosen.name} task measured by {task.metric.name}"
        raise BadData(f"{what} decodes nothing, so {beams} beams have no effect", advice="leave out {beams}")
    if model is not None:
        task.check(model)
    return unlabeled(task, model, metric) if alone else task


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
    metrics: by name, so that another name is refused before anything is loaded; without them, the task refuses it.
    models: names of the model classes in transformers that are made for it, from which the kind is guessed.
    aliases: other names for the kind. layout: as of `Rows.of`.
    labelled: whether the task's class takes `labels`. suits: of these models, those whose configuration fits.
    told_by: whether data with these columns is of this kind rather than of the one that the model's class suggests.
    """

    name: str
    build: Callable[[Request], Task]
    columns: tuple[str, ...]
    metrics: Mapping[str, metrics.Metric] = field(default_factory=dict)
    models: Collection[str] = ()
    aliases: tuple[str, ...] = ()
    layout: str | None = None
    labelled: bool = True
    suits: Callable[[Any], bool] = lambda config: True
    told_by: Callable[[Collection[str]], bool] = lambda names: False


def _of(task: Callable[..., Task], *also: str) -> Callable[[Request], Task]:
    """Build a task with the columns and options asked for, and what else its class takes of the request."""

    def build(asked: Request) -> Task:
        given = {name: getattr(asked, name) for name in also}
        return task(asked.rows, asked.tokenizer, **given, **asked.columns, **asked.options)

    return build


def _named_classes(task: Callable[..., Task], *also: str) -> Callable[[Request], Task]:
    """The same for a task whose classes the model names."""

    def build(asked: Request) -> Task:
        config = getattr(asked.model, "config", None)
        classes = {name: getattr(config, name, None) for name in ("label2id", "num_labels")}
        return _of(partial(task, **classes), *also)(asked)

    return build


def _classification(asked: Request) -> Task:
    if asked.model is not None:
        refuse_other_outputs(asked.model.config)  # before columns are guessed for a model that does not classify
    return _named_classes(Classification, "max_length")(asked)


def _answering(asked: Request) -> Task:
    usual = 384 if asked.max_length is None else min(384, asked.max_length)
    return _of(partial(QuestionAnswering, max_length=usual))(asked)


def _embedding(asked: Request) -> Task:
    how, remarks = (Pooling(), []) if asked.model is None else Pooling.of(asked.model)
    asked.rows.remarks.extend(remarks)
    return _of(partial(Embedding, how=how), "max_length")(asked)


def _language(asked: Request, masked: bool | None = None) -> Task:
    if masked is None and asked.model is not None:
        masked = {"masked": True, "causal": False}.get(guess_kind(asked.model) or "")
    given = {"masked": masked, "block": asked.max_length, "seed": asked.seed, **asked.columns, **asked.options}
    return LanguageModeling(asked.rows, asked.tokenizer, **given)


def _speech(asked: Request) -> Task:
    settings = getattr(asked.model, "generation_config", None)
    if getattr(settings, "is_multilingual", False) and "language" not in asked.options:
        asked.rows.remarks.append("language: English, of the many that the model knows")
        asked.options["language"] = "en"
    return _of(SpeechRecognition, "beams")(asked)


def _is_summary(names: Collection[str]) -> bool:
    return bool({"summary", "highlights", "article"} & {name.strip().lower() for name in names})


def _classes(names: Mapping[str, Any]) -> set[str]:
    """The classes of a mapping, in which some architectures have several."""
    return {name for found in names.values() for name in ([found] if isinstance(found, str) else found)}


SEQUENCES = _classes(auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES)
SEQ2SEQ = _classes(auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES)
ENCODERS = _classes(auto.MODEL_MAPPING_NAMES) | _classes(auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES)
# In the order in which a model's class is looked up: BART's serves both translation and masked language modelling.
KINDS = (
    TaskKind(
        "regression", _of(Regression, "max_length"), columns=("text", "pair", "label"),
        metrics=metrics.REGRESSION, models=SEQUENCES, suits=lambda config: config.num_labels == 1,
    ),
    TaskKind(
        "classification", _classification, columns=("text", "pair", "label"),
        metrics=metrics.CLASSIFICATION, models=SEQUENCES, suits=lambda config: config.num_labels != 1,
        aliases=("text-classification", "sequence-classification"),
    ),
    TaskKind(
        "tagging", _named_classes(TokenClassification, "max_length"), columns=("text", "label"),
        metrics=metrics.TAGS, models=_classes(auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES),
        aliases=("token-classification", "ner"), layout="tags",
    ),
    TaskKind(
        "answering", _answering, columns=("text", "pair", "label"),
        metrics=metrics.ANSWERS, models=_classes(auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES),
        aliases=("question-answering", "qa", "squad"),
    ),
    TaskKind(
        "choice", _of(MultipleChoice, "max_length"), columns=("text", "pair", "choices", "label"),
        metrics=metrics.CHOICE, models=_classes(auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES),
        aliases=("multiple-choice",),
    ),
    TaskKind(
        "images", _named_classes(ImageClassification), columns=("source", "label"),
        metrics=metrics.IMAGES, models=_classes(auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES),
        aliases=("image-classification",), layout="images",
    ),
    TaskKind(
        "speech", _speech, columns=("source", "target"),
        metrics=metrics.SPEECH, models=_classes(auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES),
        aliases=("speech-recognition", "automatic-speech-recognition", "asr"), layout="sounds",
    ),
    TaskKind(
        "translation", _of(Translation, "beams", "max_length"), columns=("source", "target", "target_data"),
        metrics=metrics.TRANSLATION, models=SEQ2SEQ, aliases=("seq2seq", "text2text"),
    ),
    TaskKind(
        "summarization", _of(Summarization, "beams", "max_length"), columns=("source", "target", "target_data"),
        metrics=metrics.TRANSLATION, models=SEQ2SEQ, aliases=("summaries",), told_by=_is_summary,
    ),
    TaskKind(
        "masked", partial(_language, masked=True), columns=("text",),
        metrics=metrics.LANGUAGE, models=LANGUAGE_MODELS["masked"], aliases=("masked-lm", "fill-mask"), labelled=False,
    ),
    TaskKind(
        "causal", partial(_language, masked=False), columns=("text",),
        metrics=metrics.LANGUAGE, models=LANGUAGE_MODELS["causal"], aliases=("causal-lm", "text-generation"),
        labelled=False,
    ),
    TaskKind(
        "language", _language, columns=("text",),
        metrics=metrics.LANGUAGE, models=LANGUAGE_MODELS["masked"] | LANGUAGE_MODELS["causal"],
        aliases=("language-modeling", "lm"), labelled=False,
    ),
    TaskKind(
        "endings", _of(LikeliestEnding, "max_length"), columns=("text", "pair", "choices", "label"),
        metrics=metrics.CHOICE, models=LANGUAGE_MODELS["causal"], aliases=("likeliest-ending", "zero-shot"),
        told_by=has_choices,
    ),
    TaskKind(
        "embedding", _embedding, columns=("text", "pair", "label"),
        metrics=metrics.EMBEDDING, models=ENCODERS, aliases=("embeddings", "feature-extraction"),
    ),
)  # fmt: skip
COLUMNS = {column for kind in KINDS for column in kind.columns}


def find_kind(name: str | None, model: Any = None, columns: Collection[str] = ()) -> TaskKind:
    """The kind of that name or alias; for None, the one that the model's class, and then the data's columns, suggest.

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
    fitting, cls = kinds_of(model, columns), type(model).__name__
    if not fitting and (written is None or type(model).__module__.startswith("transformers.")):
        raise HeadcountError(f"headcount has no task for {cls}", advice="docs/tasks.md shows how to write one")
    chosen = fitting[0] if written is None else known[written]
    if fitting and chosen not in fitting:
        names = " or ".join(kind.name for kind in fitting)
        raise HeadcountError(f"{cls} is not made for {chosen.name}, but for {names}", advice="change {kind}")
    return chosen


def kinds_of(model: Any, columns: Collection[str] = ()) -> list[TaskKind]:
    """The kinds of task that a model's class is made for, those that the data's columns tell first."""
    possible = [kind for kind in KINDS if is_any_of(model, kind.models) and kind.suits(model.config)]
    return sorted(possible, key=lambda kind: not kind.told_by(columns))


def refuse_unknown(kind: str | None, metric: str | None, labels: str = "data", model: Any = None) -> None:
    """Refuse a kind of task, or a metric of it, that does not exist; without a kind, a metric that no kind has.

    >>> refuse_unknown("classification", "bleu")
    Traceback (most recent call last):
    headcount.errors.BadData: unknown metric 'bleu'. Available: accuracy, f1, f1_macro, logit_difference, loss, matthews

    labels: with "none", the metrics of `unlabeled` are there as well.
    model: also refuse one that no kind suits, or not this one; its weights are not read.
    """
    kinds = KINDS if kind is None and model is None else [find_kind(kind, model)]
    if kind is None and model is not None:
        kinds = kinds_of(model)  # its data tells which
    if metric is not None and all(one.metrics for one in kinds):
        known = {name: found for one in kinds for name, found in one.metrics.items()}
        metrics.pick(known if labels == "data" else {**known, **metrics.UNLABELED}, metric)


def guess_kind(model: Any, columns: Collection[str] = ()) -> str | None:
    """The kind of task that a model's class, and where it serves several the data's columns, suggest; None if none do.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=4, vocab_size=8))
    >>> guess_kind(model), guess_kind(model, ["context", "endings"])
    ('causal', 'endings')
    """
    return next((kind.name for kind in kinds_of(model, columns)), None)


def _refuse_unused(kind: TaskKind, given: Mapping[str, Any]) -> None:
    """A column that the task does not use is a mistake, not something to ignore."""
    for name, value in given.items():
        if name not in kind.columns:
            used = ", ".join(f"{{{column}}}" for column in kind.columns)
            raise BadData(f"a {kind.name} task does not use {name} (given: {value!r})", advice=f"it uses {used}")
