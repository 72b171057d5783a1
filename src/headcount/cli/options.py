"""What commands share: options declared once, and a `Setup` that carries them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import typer

from headcount.errors import HeadcountError, unknown

TASK, RUN, MACHINES = "The task", "The run", "Several machines"
# What only some tasks use: `--help` names these options, `--help-all` explains them.
TEXTS = "Only for tasks on texts or with labels"
SOURCES = "Only for translation, summarization, speech and images"
ENGINE = ("engine", "address", "workers", "threads")
DEVICES = ("auto", "cpu", "cuda", "mps", "spread")
# Arguments of Python that the command line calls something else than `--argument`.
WRITTEN = {
    "run": "--out",
    "kind": "--task",
    "masked": "--task",
    "select_task": "--data",
    "masks": "--off",
    "score_task": "--score-data",
    "test_task": "--test",
    "compensation": "--compensate",
    "recovery": "--recover-epochs",
    "lam": "--lambda",
    "label2id": "label2id in the model's config.json",
}

# Closed sets. Those of the library stand here too, since it is slow to import; a test keeps them the same.
TASKS = (
    "regression", "classification", "tagging", "answering", "choice", "images", "speech", "translation",
    "summarization", "masked", "causal", "language", "endings", "embedding",
)  # fmt: skip
ALIASES = (
    "text-classification", "sequence-classification", "token-classification", "ner", "question-answering", "qa",
    "squad", "multiple-choice", "image-classification", "speech-recognition", "automatic-speech-recognition", "asr",
    "seq2seq", "text2text", "summaries", "masked-lm", "fill-mask", "causal-lm", "text-generation",
    "language-modeling", "lm", "likeliest-ending", "zero-shot", "embeddings", "feature-extraction",
)  # fmt: skip
METRICS = (
    "accuracy", "agreement", "bleu", "cer", "chrf", "cosine", "divergence", "exact_match", "f1", "f1_macro",
    "logit_difference", "loss", "matthews", "mse", "pearson", "perplexity", "recall@1", "recall@10", "recall@5",
    "rouge1", "rouge2", "rougeL", "spearman", "top5", "wer",
)  # fmt: skip
Precision = Literal["auto", "saved", "float32", "bfloat16", "float16"]
FillName = Literal["zero", "mean", "resample", "counterfactual"]


def option(*names: str, panel: str | None = None, **settings: Any) -> Any:
    """An option, in a panel of the help."""
    return typer.Option(*names, rich_help_panel=panel, **settings)


def written(argument: str) -> str:
    """What the command line calls an argument of Python.

    >>> written("target_data"), written("run")
    ('--target-data', '--out')
    """
    return WRITTEN.get(argument, f"--{argument.replace('_', '-')}")


@contextmanager
def usage() -> Iterator[None]:
    """Around settings that are checked before anything is loaded: what is refused there is wrong usage (exit code 2).

    >>> with usage():
    ...     raise HeadcountError("the step is 0", advice="give {step} as a share")
    Traceback (most recent call last):
    typer...BadParameter: the step is 0; give --step as a share
    """
    try:
        yield
    except HeadcountError as error:
        raise typer.BadParameter(error.in_words(written)) from error


def _device(name: str) -> str:
    one_of("--device", DEVICES)(name.partition(":")[0])  # cuda:1 is the second of its kind
    return name


Model = Annotated[str, typer.Argument(metavar="MODEL", help="Model directory or hub id.")]
Data = Annotated[
    str, option("--data", help="A csv, tsv, jsonl, parquet or text file, or a hub id; columns are guessed.")
]
ScoreTargets = Annotated[str | None, option("--score-target-data", panel=SOURCES, help="Targets of --score-data.")]
TestTargets = Annotated[str | None, option("--test-target-data", panel=SOURCES, help="Targets of --test.")]
Fill = Annotated[FillName, option("--fill", help="What an ablated head puts out instead.")]
Quiet = Annotated[bool, option("--quiet", "-q", panel=RUN, help="Print results and errors only.")]
AsJson = Annotated[bool, option("--json", panel=RUN, help="Print one JSON object.")]
Overwrite = Annotated[bool, option("--overwrite", help="Replace what is already there.")]
Split = Annotated[str | None, option("--split", panel=TASK, help="Split of a hub data set.")]
Limit = Annotated[int | None, option("--limit", panel=TASK, min=1, help="Use a random sample of this size.")]
Seed = Annotated[int, option("--seed", panel=RUN, min=0, help="Random seed.")]
Device = Annotated[
    str,
    option(
        "--device",
        panel=RUN,
        parser=_device,
        metavar="|".join(DEVICES),
        help="cuda:1 is the second GPU; spread uses all.",
    ),
]
DType = Annotated[Precision, option("--dtype", panel=RUN, help="Precision of the computation.")]


@dataclass
class Setup:
    """The shared options of one call of a command."""

    model: Model
    task: Annotated[str | None, option("--task", panel=TASK, help="Guessed; or tagging, images…")] = None
    metric: Annotated[str | None, option("--metric", panel=TASK, help="The task's own; or f1, bleu…")] = None
    label: Annotated[str | None, option("--label", panel=TEXTS, help="Column of the label.")] = None
    labels: Annotated[
        Literal["data", "none"],
        option("--labels", panel=TASK, help="none: no labels needed, the model's own predictions are the reference."),
    ] = "data"
    text: Annotated[str | None, option("--text", panel=TEXTS, help="Column of the text, by name or number.")] = None
    pair: Annotated[str | None, option("--pair", panel=TEXTS, help="Column of the second text.")] = None
    choices: Annotated[str | None, option("--choices", panel=TEXTS, help="Column of a question's choices.")] = None
    source: Annotated[str | None, option("--source", panel=SOURCES, help="Column of the source.")] = None
    target: Annotated[str | None, option("--target", panel=SOURCES, help="Column of the target.")] = None
    target_data: Annotated[str | None, option("--target-data", panel=SOURCES, help="Line-aligned file of targets.")] = (
        None
    )
    split: Split = None
    limit: Limit = None
    beams: Annotated[int, option("--beams", panel=SOURCES, min=1, help="Beams in decoding; 1 is greedy.")] = 1
    max_length: Annotated[
        int | None, option("--max-length", panel=TEXTS, min=1, help="Truncate texts to this many tokens.")
    ] = None
    seed: Seed = 0
    device: Device = "auto"
    dtype: DType = "auto"
    out: Annotated[str | None, option("--out", panel=RUN, help="Run directory: keeps the results, and resumes.")] = None
    as_json: AsJson = False
    quiet: Quiet = False
    dry_run: Annotated[bool, option("--dry-run", panel=RUN, help="Say how long it would take here.")] = False
    engine: Annotated[
        Literal["local", "ray"], option("--engine", panel=MACHINES, help="ray works on shards in parallel.")
    ] = "local"
    address: Annotated[
        str | None,
        option("--address", panel=MACHINES, help="Address of a Ray cluster; by default one is started here."),
    ] = None
    workers: Annotated[
        int | None, option("--workers", panel=MACHINES, min=1, help="Workers; by default as many as fit.")
    ] = None
    threads: Annotated[int, option("--threads", panel=MACHINES, min=1, help="Threads of each worker.")] = 1
    own: dict[str, Any] = field(init=False, default_factory=dict)  # the command's own options, and the command line
    said: set[str] = field(init=False, default_factory=set)  # remarks already made
    sample: Any = field(init=False, default=None)  # of the data, in a dry run

    def check(self) -> None:
        """Refuse a task or a metric that does not exist, before anything is loaded."""
        if self.task is not None and self.task.lower().replace("_", "-") not in (*TASKS, *ALIASES):
            raise typer.BadParameter(unknown("task", self.task, TASKS))
        if self.metric is not None and self.task is None and self.metric not in METRICS:
            raise typer.BadParameter(unknown("metric", self.metric, METRICS))
        if self.metric is not None:
            from headcount.tasks import refuse_unknown

            with usage():
                refuse_unknown(self.task, self.metric, self.labels)

    def load_model(self) -> tuple[Any, Any]:
        """The model on its device, and its tokenizer; one that the task does not suit is refused unread."""
        from headcount.cli.model_loading import load_model, refuse_unsuited

        refuse_unsuited(self.model, self.task, self.metric, self.labels)
        return load_model(self.model, self.device, self.dtype)

    def load_trainable(self) -> tuple[Any, Any]:
        """The same, for a command that needs gradients: of an .onnx file, the model that it was exported from."""
        if not self.model.endswith(".onnx"):
            return self.load_model()
        from headcount.cli.model_loading import load_origin, load_reader, tokenizer_directory

        model = load_origin(self.model, self.device)
        return model, load_reader(tokenizer_directory(self.model), self.model, model)

    def load_task(self, data: str, tokenizer: Any, model: Any) -> Any:
        """The task on `--data`."""
        return self._load_task(data, tokenizer, model, self.target_data)

    def load_other(
        self, data: str, tokenizer: Any, model: Any, target_data: str | None, option: str, limit: int | None = None
    ) -> Any:
        """The same task on other data, whose targets another option names; limit: another than `--limit`."""
        if target_data is None and self.target_data is not None:
            raise typer.BadParameter(f"{data} needs its own targets, as --data has with --target-data; add {option}")
        return self._load_task(data, tokenizer, model, target_data, limit)

    def _load_task(
        self, data: str, tokenizer: Any, model: Any, target_data: str | None, limit: int | None = None
    ) -> Any:
        """Load the task, and say what was guessed or truncated; in a dry run, a sample of it."""
        limit = limit or self.limit
        if self.sample is not None:
            name = (data, getattr(tokenizer, "name_or_path", ""))
            return self.sample.of(name, lambda: self._whole_task(data, tokenizer, model, target_data, limit))
        return self._whole_task(data, tokenizer, model, target_data, limit)

    def _whole_task(self, data: str, tokenizer: Any, model: Any, target_data: str | None, limit: int | None) -> Any:
        from headcount.cli.console import messages
        from headcount.tasks import load_task

        names = ("text", "pair", "label", "source", "target", "choices")
        columns = {name: _column(getattr(self, name)) for name in names}
        task = load_task(
            self.task, data, tokenizer, model, split=self.split, limit=limit, seed=self.seed, metric=self.metric,
            target_data=target_data, beams=self.beams, max_length=self.max_length, labels=self.labels, **columns,
        )  # fmt: skip
        for remark in task.check(model):
            if remark not in self.said:
                messages.print(remark, style="dim", markup=False)
            self.said.add(remark)
        return task

    @contextmanager
    def machines(self) -> Iterator[None]:
        """The engine that was chosen, as long as the block lasts."""
        if self.engine == "local":
            for name in ENGINE[1:]:
                if getattr(self, name) != getattr(Setup, name):
                    raise typer.BadParameter(f"--{name} is for --engine ray")
            yield
            return
        from headcount.engine import Ray, using

        if self.device == "auto":
            self.device = "cpu"  # here; workers use the GPUs that the cluster has
        with Ray(self.address, workers=self.workers, threads=self.threads, share=True) as engine, using(engine):
            if engine.gpus and self.dtype == "auto":
                self.dtype = "saved"
            yield

    def arguments(self) -> dict[str, Any]:
        """Everything given, for `run.json`."""
        given, inner = {**vars(self), **self.own}, ("own", "said", "sample")
        return {name: value for name, value in given.items() if value is not None and name not in inner}


def command(*, sharded: bool = False, without: Collection[str] = ()) -> Callable[[Any], Any]:
    """Mark a function as a command; sharded: other machines can do its work; without: shared options it cannot use."""

    def mark(function: Any) -> Any:
        function.hidden_options = {*without, *(() if sharded else ENGINE)}
        return function

    return mark


def one_of(name: str, choices: tuple[str, ...]) -> Callable[[str], str]:
    """A parser of a closed set: the word itself, or a refusal that suggests the nearest.

    >>> one_of("--mode", ("each", "all-but-one"))("each")
    'each'
    """

    def parse(word: str) -> str:
        if word not in choices:
            raise UnknownWord(unknown(name, word, choices))
        return word

    return parse


class UnknownWord(typer.BadParameter):
    """A word outside of a closed set; the sentence says which set, so typer does not put the option before it."""

    def format_message(self) -> str:
        return self.message


def typed(context: Any) -> list[str]:
    """The command line that gives these values, whoever calls: what differs from the defaults, arguments first."""
    arguments, options = [context.info_name], list[str]()
    for one in context.command.params:
        value = context.params.get(one.name)
        if value is None or value == one.get_default(context) or one.name == "as_json":
            continue
        several = value if isinstance(value, (list, tuple)) else [value]
        if one.param_type_name == "argument":
            arguments += map(str, several)
        elif value is True:
            options.append(one.opts[0])
        else:
            options += [word for each in several for word in (one.opts[0], str(each))]
    return arguments + options


def amount(name: str) -> Callable[[str], str]:
    """A parser of a number or a share, which leaves it as it was written.

    >>> amount("--heads")("50%")
    '50%'
    """

    def parse(word: str) -> str:
        try:
            float(word.removesuffix("%"))
        except ValueError:
            raise UnknownWord(f"{name} {word!r} is not a number or a share such as 50%") from None
        return word

    return parse


def listed(text: str | None) -> list[str] | None:
    """What stands between the commas.

    >>> listed("encoder, cross")
    ['encoder', 'cross']
    """
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _column(name: str | None) -> str | int | None:
    return int(name) if name is not None and name.isdecimal() else name
