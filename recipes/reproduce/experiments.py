"""Which models on which data (`EXPERIMENTS`), and what is computed for each: `headcount` commands (`PARTS`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

from headcount.errors import HeadcountError, first_line


@dataclass(frozen=True)
class Experiment:
    """A trained model with its data; files are relative to the data directory.

    data: for testing. score: other data, for scoring or choosing heads. other: out of domain.
    targets: the target files of data, score and other, in this order. options: columns and metric for the command line.
    checkpoints: a pattern, relative to the model's directory. overlaps: data and score share some texts, as published.
    treebank: sentences with dependencies, for V19's experiments on this model. only: the parts of M19 to compute, if
    not all. limit: how many examples, if not as many as the option says. base: a model of BERT-base's size, which has
    an option of its own for that. orders: the methods whose orders are compared. gate_lr: the learning rate of the
    weights, when V19's gates are trained.
    """

    name: str
    model: str
    data: str
    score: str
    other: str | None = None
    targets: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    checkpoints: str | None = None
    recipe: str = ""
    overlaps: bool = False
    treebank: str | None = None
    only: tuple[str, ...] = ()
    limit: int = 0
    base: bool = False
    orders: str = "gradient,oracle,random"
    gate_lr: str = "3e-4"

    @property
    def translates(self) -> bool:
        return bool(self.targets)

    def aligned(self, option: str, role: str) -> list[str]:
        """`--target-data FILE` for a translator, nothing for a classifier."""
        return [option, self.targets[("data", "score", "other").index(role)]] if self.targets else []


TREEBANK = "ud/en_ewt-dev.conllu"


def _multi30k(
    language: str,
    data: str,
    model: str,
    checkpoints: str,
    recipe: str = "",
    treebank: str | None = None,
    more: str = "",
) -> Experiment:
    """more: said after the name, of a model whose training dynamics alone are of interest."""
    files = (data, "multi30k/train", "multi30k/test_2017_mscoco")
    texts, targets = ([f"{file}.{one}" for file in files] for one in ("en", language))
    return Experiment(
        f"Multi30k en-{language}{more}", model, *texts, targets=tuple(targets), checkpoints=checkpoints, recipe=recipe,
        treebank=treebank, only=("track", "track-loss") if more else (),
    )  # fmt: skip


def _seeds(one: Experiment, recipe: str = "", orders: str = "gradient") -> tuple[Experiment, ...]:
    """A classifier, and two more that are trained with other seeds, for their curves alone.

    recipe: how to train them, if it is not how the first was trained. orders: of their curves.
    """
    how = (recipe or one.recipe).rpartition(" --out ")[0]
    others = (
        replace(
            one, name=f"{one.name} seed {seed}", model=f"{one.model}-seed-{seed}", only=("curve",), treebank=None,
            orders=orders,
            recipe=f"{how} --seed {seed} --out models/{one.model}-seed-{seed}",
        )
        for seed in (1, 2)
    )  # fmt: skip
    return one, *others


CLASSIFY = "python -m recipes.finetune --keep last"
COLA = ("--text", "3", "--label", "1", "--metric", "matthews")
SST2 = "python -m recipes.finetune --keep last --train sst2/train.tsv --dev sst2/dev.tsv --epochs 2 --out models/sst2"
BASE = "python -m recipes.finetune --encoder all-mpnet-base-v2 --keep last --epochs 1 --lr 3e-5"
BASE_PARTS = ("ablate", "best", "alone", "curve")  # the number of scoring examples is varied on smaller models
TRANSLATE = "python -m recipes.train_translator --train train.en train.de --val val.en val.de"
SNLI = f"{BASE} --train snli/train.tsv --dev snli/dev.tsv --limit 20000 --out models/mpnet-snli"
EXPERIMENTS = (
    *_seeds(
        Experiment("SST-2", "minilm-sst2", "sst2/dev.tsv", "sst2/train.tsv", treebank=TREEBANK, gate_lr="5e-5"), SST2
    ),
    *_seeds(Experiment(
        "CoLA", "cola", "cola/in_domain_dev.tsv", "cola/in_domain_train.tsv", "cola/out_of_domain_dev.tsv",
        options=COLA,
        recipe=f"{CLASSIFY} --train cola/in_domain_train.tsv --dev cola/in_domain_dev.tsv --text 3 --label 1 "
        "--metric matthews --epochs 4 --out models/cola",
        overlaps=True,
    ), orders="gradient,oracle,random"),
    *_seeds(Experiment(
        "MRPC", "mrpc", "mrpc/test.txt", "mrpc/train.txt", options=("--metric", "f1"), only=("curve",), limit=1725,
        recipe=f"{CLASSIFY} --train mrpc/train.txt --dev mrpc/test.txt --out models/mrpc",
    )),
    Experiment(
        "SST-2 base", "mpnet-sst2", "sst2/dev.tsv", "sst2/train.tsv", base=True, only=BASE_PARTS,
        recipe=f"{BASE} --train sst2/train.tsv --dev sst2/dev.tsv --limit 20000 --out models/mpnet-sst2",
    ),
    Experiment("SNLI base", "mpnet-snli", "snli/dev.tsv", "snli/train.tsv", base=True, only=BASE_PARTS, recipe=SNLI),
    Experiment(
        "MultiNLI base", "mpnet-snli", "nli/mnli_matched.tsv", "snli/train.tsv", "nli/mismatched_genres.tsv",
        base=True, only=("ablate", "other"), recipe=SNLI,
    ),
    _multi30k(
        "de", "multi30k/test_2016_flickr", "en-de/model", "../checkpoints/epoch-*", f"{TRANSLATE} --out models/en-de"
    ),
    _multi30k(
        "de", "multi30k/test_2016_flickr", "en-de-constant/model", "../checkpoints/epoch-*",
        f"{TRANSLATE} --constant --out models/en-de-constant", more=" constant rate",
    ),
    _multi30k("fr", "multi30k/val", "multi30k-en-fr", "checkpoints/epoch-*", treebank=TREEBANK),
    Experiment(
        "SmolLM2-135M", "smollm2", "language/wikitext2_test.txt", "language/lambada.jsonl",
        options=("--max-length", "64"), only=("ablate", "alone", "curve"), limit=16,
        orders="gradient,random",
        recipe="python -m benchmarks.language_roles --gguf SmolLM2-135M-Instruct.Q4_1.gguf --out models/smollm2",
    ),
)  # fmt: skip


def read_experiments(file: str | None) -> tuple[Experiment, ...]:
    """The ones above, or those of a JSON file: a list of objects with the fields of `Experiment`."""
    if file is None:
        return EXPERIMENTS
    try:
        entries = json.loads(Path(file).read_text(encoding="utf-8"))
        if not isinstance(entries, list) or not entries:
            raise ValueError("expected a list of objects")
        return tuple(
            Experiment(**{k: tuple(v) if isinstance(v, list) else v for k, v in one.items()}) for one in entries
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:  # missing, not JSON, other fields
        wanted = ", ".join(field.name for field in fields(Experiment))
        raise HeadcountError(f"{file} is not a list of experiments with {wanted}: {first_line(error)}") from error


def placed(one: Experiment, data: Path, models: list[Path]) -> Experiment | None:
    """The experiment with its real paths, the model from the first directory that has it; None if none has it."""
    found = next((place / one.model for place in models if (place / one.model / "config.json").is_file()), None)
    if found is None:
        return None
    other, treebank = (None if file is None else str(data / file) for file in (one.other, one.treebank))
    targets = tuple(str(data / target) for target in one.targets)
    return replace(
        one, model=str(found), data=str(data / one.data), score=str(data / one.score), other=other, targets=targets,
        treebank=treebank,
    )  # fmt: skip


RANDOM = 10  # random orders


@dataclass(frozen=True)
class Part:
    """A kind of result: `command` gives the words after `headcount`, without `--limit` and `--out`.

    wanted: whether the experiment has the data for it. size: the option that says how many examples, if it is another
    than for most parts. model: the directory of the model that the command reads.
    """

    name: str
    title: str
    command: Callable[[Experiment], list[str]]
    wanted: Callable[[Experiment], bool] = lambda one: True
    size: str = ""
    model: Callable[[Experiment], str] = lambda one: one.model


def _each(one: Experiment, role: str = "data") -> list[str]:
    data = one.data if role == "data" else str(one.other)
    return ["ablate", one.model, "--data", data, *one.aligned("--target-data", role), "--alpha", "0.01", *one.options]


def _best(one: Experiment) -> list[str]:
    return [*_each(one), "--mode", "all-but-one"]


def _alone(one: Experiment) -> list[str]:
    return [*_best(one), "--select-data", one.score, *one.aligned("--select-target-data", "score")]


def _curve(one: Experiment, *more: str) -> list[str]:
    score = ["--score-data", one.score, *one.aligned("--score-target-data", "score")]
    data = ["--data", one.data, *one.aligned("--target-data", "data")]
    return ["curve", one.model, *score, *data, *more, *one.options, *["--overlap", "allow"] * one.overlaps]


def _track(one: Experiment) -> list[str]:
    checkpoints = [f"{one.model}/{one.checkpoints}", one.model]
    return ["track", *checkpoints, *_curve(one)[2:], "--step", "0.2", "--orders", str(RANDOM)]


def _scored(number: int) -> Callable[[Experiment], list[str]]:
    return lambda one: _curve(one, "--methods", "gradient", "--order", "both", "--score-limit", str(number))


SCORED = (200, 1000, 5000)  # examples that importance is estimated on
BEAMS = 5  # as M19
PARTS = (
    Part("ablate", "one head off", _each),
    Part("other", "one head off, out of domain", lambda one: _each(one, "other"), lambda one: one.other is not None),
    Part(
        "curve",
        "pruning curves",
        lambda one: _curve(one, "--methods", one.orders, "--order", "both", "--orders", str(RANDOM)),
    ),
    *(Part(f"scored-{n}", f"curves by importance on {n:,} examples", _scored(n)) for n in SCORED),
    Part(
        "beam",
        f"pruning curve with {BEAMS} beams",
        lambda one: _curve(one, "--beams", str(BEAMS), "--step", "0.2"),
        lambda one: one.translates,
    ),
    Part("best", "all but one, chosen on the same data", _best),
    Part("alone", "all but one, chosen on other data", _alone),
    Part("kinds", "curves by kind", lambda one: _curve(one, "--kinds", "each"), lambda one: one.translates),
    Part("track", "training dynamics", _track, lambda one: one.checkpoints is not None, "track_sentences"),
    Part(
        "track-loss",
        "training dynamics, teacher-forced loss",
        lambda one: [*_track(one), "--metric", "loss"],
        lambda one: one.checkpoints is not None,
        "track_sentences",
    ),
)
