"""Models with the data to score heads on and other data to evaluate on."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from headcount.surgery import load
from headcount.tasks.load import load_task

SHARED = Path(os.environ.get("HEADCOUNT_SHARED") or Path(__file__).resolve().parents[3] / "shared")
JOBS = [
    {
        "name": "SST-2", "model": "models/minilm-sst2", "task": "classification",
        "score": "data/sst2/train.tsv", "data": "data/sst2/dev.tsv",
    },
    {
        "name": "CoLA", "made": "cola", "task": "classification", "metric": "matthews", "text": 3, "label": 1,
        "score": "data/cola/in_domain_train.tsv", "data": "data/cola/in_domain_dev.tsv",
    },
    {
        "name": "MRPC", "made": "mrpc", "task": "classification", "metric": "accuracy",
        "score": "data/mrpc/train.txt", "data": "data/mrpc/test.txt",
    },
    {
        "name": "Multi30k", "model": "models/multi30k-en-fr", "task": "translation",
        "score": "data/multi30k/train.en", "score_target": "data/multi30k/train.fr",
        "data": "data/multi30k/val.en", "target": "data/multi30k/val.fr",
    },
]  # fmt: skip


def read(job: dict[str, Any], options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """A model, the data to score on and the data to evaluate on."""
    directory = SHARED / job["model"]
    model = load(directory, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    common = {name: job.get(name) for name in ("metric", "text", "label")} | {"seed": options.seed}
    targets = [SHARED / job[name] if name in job else None for name in ("score_target", "target")]
    score = load_task(
        job["task"], SHARED / job["score"], tokenizer, model, limit=options.score, target_data=targets[0], **common
    )
    data = load_task(
        job["task"], SHARED / job["data"], tokenizer, model, limit=options.limit, target_data=targets[1], **common
    )
    return model, score, data
