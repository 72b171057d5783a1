"""Which models on which data: a model, the data it is tested on, and other data that its heads are scored on."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

from headcount.errors import HeadcountError, first_line


@dataclass(frozen=True)
class Experiment:
    """A trained model with its data; files are relative to the data directory.

    data: tested on. score: other data, that heads are scored or chosen on. other: out of domain.
    targets: the target files of data, score and other, in this order. options: columns and metric for the command line.
    checkpoints: a pattern, relative to the model's directory. overlaps: some texts are in data and in score, as
    published, and that is allowed.
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

    @property
    def translates(self) -> bool:
        return bool(self.targets)

    def aligned(self, option: str, role: str) -> list[str]:
        """`--target-data FILE` for a translator, nothing for a classifier."""
        return [option, self.targets[("data", "score", "other").index(role)]] if self.targets else []


def _multi30k(language: str, data: str, model: str, checkpoints: str, recipe: str = "") -> Experiment:
    files = (data, "multi30k/train", "multi30k/test_2017_mscoco")
    texts, targets = ([f"{file}.{one}" for file in files] for one in ("en", language))
    return Experiment(
        f"Multi30k en-{language}", model, *texts, targets=tuple(targets), checkpoints=checkpoints, recipe=recipe
    )


CLASSIFY = "python -m recipes.finetune_classifier --keep last"
COLA = ("--text", "3", "--label", "1", "--metric", "matthews")
EXPERIMENTS = (
    Experiment("SST-2", "minilm-sst2", "sst2/dev.tsv", "sst2/train.tsv"),
    Experiment(
        "CoLA", "cola", "cola/in_domain_dev.tsv", "cola/in_domain_train.tsv", "cola/out_of_domain_dev.tsv",
        options=COLA,
        recipe=f"{CLASSIFY} --train cola/in_domain_train.tsv --dev cola/in_domain_dev.tsv --text 3 --label 1 "
        "--metric matthews --epochs 4 --out models/cola",
        overlaps=True,
    ),
    Experiment(
        "MRPC", "mrpc", "mrpc/test.txt", "mrpc/train.txt",
        recipe=f"{CLASSIFY} --train mrpc/train.txt --dev mrpc/test.txt --out models/mrpc",
    ),
    _multi30k(
        "de", "multi30k/test_2016_flickr", "en-de/model", "../checkpoints/epoch-*",
        "python -m recipes.train_translator --train train.en train.de --val val.en val.de --out models/en-de",
    ),
    _multi30k("fr", "multi30k/val", "multi30k-en-fr", "checkpoints/epoch-*"),
)  # fmt: skip


def read_experiments(file: str | None) -> tuple[Experiment, ...]:
    """The ones above, or those of a JSON file: a list of objects with the fields of `Experiment`."""
    if file is None:
        return EXPERIMENTS
    try:
        entries = json.loads(Path(file).read_text(encoding="utf-8"))
        if not isinstance(entries, list) or not entries:
            raise ValueError("it is no list of objects")
        return tuple(
            Experiment(**{k: tuple(v) if isinstance(v, list) else v for k, v in one.items()}) for one in entries
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:  # not there, no JSON, other fields
        wanted = ", ".join(field.name for field in fields(Experiment))
        raise HeadcountError(f"{file} holds no experiments: {first_line(error)}. Their fields are {wanted}") from error


def placed(one: Experiment, data: Path, models: list[Path]) -> Experiment | None:
    """The experiment with real paths: its model in the first directory that has it; None if none does."""
    found = next((place / one.model for place in models if (place / one.model / "config.json").is_file()), None)
    if found is None:
        return None
    other = None if one.other is None else str(data / one.other)
    targets = tuple(str(data / target) for target in one.targets)
    return replace(
        one, model=str(found), data=str(data / one.data), score=str(data / one.score), other=other, targets=targets
    )
