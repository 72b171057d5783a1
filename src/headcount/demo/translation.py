"""The story of a small translator, trained live: which attention does it need, and from which point in training?

It translates numbers in words from English to German, which puts units before tens: no download, and heads that differ.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast

from headcount.demo import Story, find_packages, most_needed, needed_heads
from headcount.surgery import save
from headcount.tasks import Translation
from headcount.training import Progress, fit

LARGEST = 999_999
SPECIAL = ["<pad>", "</s>", "<unk>"]
KINDS = {"encoder": "encoder self-attention", "decoder": "decoder self-attention", "cross": "cross-attention"}


@dataclass(frozen=True)
class NumberSizes:
    """How many numbers to train on, to score heads on and to test on; epochs, those to keep, and layers."""

    train: int
    score: int
    test: int
    epochs: int
    kept: tuple[int, ...]
    layers: int = 3  # of the encoder, and of the decoder


FULL = NumberSizes(train=6000, score=300, test=300, epochs=16, kept=(1, 2, 4, 8, 16))
QUICK = NumberSizes(train=3000, score=100, test=100, epochs=8, kept=(2, 4, 8))


def tell(story: Story, quick: bool) -> None:
    """The story, step by step; every number comes out of a run directory."""
    out, sizes = story.out, QUICK if quick else FULL
    model = out / "model"
    data = ["--data", out / "test.en", "--target-data", out / "test.de"]
    exact = [*data, "--metric", "exact_match"]
    scoring = ["--score-data", out / "score.en", "--score-target-data", out / "score.de"]
    story.title("Numbers in words, English to German")
    counted = write_numbers(out, sizes)
    english, german = (_first_line(out / f"test.{side}") for side in ("en", "de"))
    story.say(f"{counted['train']:,} for training, {counted['test']:,} others for testing. For example:")
    story.say(f"  {english}\n  {german}")
    shape = f"{sizes.layers} + {sizes.layers} layers of 4 heads"
    story.title(f"A small encoder-decoder ({shape}), trained for {sizes.epochs} epochs")
    story.train("training", lambda progress: train_translator(out, sizes, progress))
    score = story.command("evaluate", "evaluate", model, *exact)["score"]
    story.say(f"{score:.1%} of the test numbers are translated without a mistake.")

    story.title("Which heads does it need? Each one turned off, and tested")
    ablated = story.command("ablate", "ablate", model, *exact)
    story.say(needed_heads(ablated))

    story.title("Which kind of attention does it need most? Each kind pruned alone")
    curves = story.command("curve", "curve", model, *scoring, *exact, "--kinds", "each", "--step", 0.25)
    story.say(_kinds(curves))

    story.title("When in training did it become clear which heads matter?")
    checkpoints = [out / "checkpoints" / f"epoch-{epoch:02d}" for epoch in sizes.kept]
    step = 0.2 if quick else 0.1
    tracked = story.command("track", "track", *checkpoints, *scoring, *data, "--metric", "chrf", "--step", step)
    story.say(_dynamics(tracked))
    story.finish(
        ["evaluate", model, *exact, "--off", most_needed(ablated)[0]["head"]],
        ["ablate", model, *exact, "--mode", "all-but-one"],
        ["prune", model, *scoring, *exact, "--heads", "25%", "--out", out / "prune"],
        explore=[model, out / "ablate", "--data", out / "test.en"],
    )


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8") as stream:
        return stream.readline().strip()


def _kinds(result: dict[str, Any]) -> str:
    """What each kind's curve loses on average; which is the most sensitive is read from the numbers."""
    points = result["points"] if result["higher_is_better"] else -result["points"]
    losses = {
        curve["kind"]: fmean((result["base"] - point["score"]) / points for point in curve["points"][1:])
        for curve in result["curves"]
    }
    order = sorted(losses, key=lambda kind: -losses[kind])
    halves = {
        curve["kind"]: min(curve["points"], key=lambda point: abs(point["pruned"] - 0.5))["score"]
        for curve in result["curves"]
    }
    scores = ", ".join(f"{KINDS[kind]} {halves[kind]:.1%}" for kind in order)
    lost = ", ".join(f"{kind} {losses[kind]:.0f}" for kind in order)
    return (
        f"Correct with half of the heads of one kind removed: {scores}. "
        f"Points lost on average along the curve: {lost}. "
        f"Here, {KINDS[order[0]]} is the most sensitive kind."
    )


def _dynamics(result: dict[str, Any], share: float = 0.4) -> str:
    """What each checkpoint keeps of its own chrF (which rewards half-right numbers), and when the order settles."""
    said = []
    for one in result["checkpoints"]:
        nearest = min((point["pruned"] for point in one["points"]), key=lambda pruned: abs(pruned - share))
        here = {point["method"]: point["relative"] for point in one["points"] if point["pruned"] == nearest}
        if None not in here.values():  # a checkpoint that scores 0 has no share to keep
            said.append(f"{one['name']} {here['gradient']:.0%} ({here['random']:.0%})")
    return (
        f"With {share:.0%} of the heads removed, the least important first (or in random order), checkpoints keep of "
        f"their own chrF: {', '.join(said)}. {result['in_words']}"
    )


def write_numbers(out: Path, sizes: NumberSizes) -> dict[str, int]:
    """Write train, score and test, .en and .de, and return their sizes; only score is a part of train."""
    find_packages("num2words")
    words = importlib.import_module("num2words").num2words
    random_numbers = random.Random(0).sample(range(1000, LARGEST + 1), sizes.train + sizes.test)
    test = random_numbers[: sizes.test]
    small = range(min(1000, sizes.train))  # what the large ones are made of
    train = [*random_numbers[sizes.test :], *small]
    parts = {"test": test, "train": train, "score": train[: sizes.score]}
    for name, numbers in parts.items():
        for language in ("en", "de"):
            lines = "".join(f"{words(number, lang=language)}\n" for number in numbers)
            (out / f"{name}.{language}").write_text(lines, encoding="utf-8")
    return {name: len(numbers) for name, numbers in parts.items()}


def train_translator(out: Path, sizes: NumberSizes, progress: Progress) -> Path:
    """Train a small Marian-layout translator, keep some epochs in `checkpoints`, and save the last to `model`."""
    tokenizer = _tokenizer(line for side in ("en", "de") for line in (out / f"train.{side}").open(encoding="utf-8"))
    torch.manual_seed(0)
    model = _model(len(tokenizer), sizes.layers)
    train = Translation(out / "train.en", tokenizer, target_data=out / "train.de", metric="loss")

    def keep(epoch: int) -> None:
        if epoch in sizes.kept:
            save(model, out / "checkpoints" / f"epoch-{epoch:02d}", tokenizer=tokenizer)

    fit(
        model, train, epochs=sizes.epochs, lr=2e-3, tokens=800, progress=progress, after_epoch=keep,
        directory=out / "training",
    )  # fmt: skip
    return save(model, out / "model", tokenizer=tokenizer)


def _tokenizer(lines: Iterable[str]) -> Any:
    """Byte-pair pieces of both languages: German writes a number as one long word."""
    bpe = Tokenizer(models.BPE(unk_token="<unk>"))
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    settings = trainers.BpeTrainer(vocab_size=160, special_tokens=SPECIAL, max_token_length=9, show_progress=False)
    bpe.train_from_iterator((line.strip() for line in lines), settings)
    bpe.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    inputs = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=bpe, model_input_names=inputs, model_max_length=64, **names)


def _model(vocabulary: int, layers: int, heads: int = 4, width: int = 64) -> Any:
    sides: dict[str, Any] = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", layers), ("attention_heads", heads), ("ffn_dim", 2 * width))
    }
    ids: dict[str, Any] = {
        "pad_token_id": 0,
        "eos_token_id": 1,
        "decoder_start_token_id": 0,
        "forced_eos_token_id": None,
    }
    config = MarianConfig(
        vocab_size=vocabulary, decoder_vocab_size=vocabulary, d_model=width, max_position_embeddings=64,
        activation_function="relu", scale_embedding=True, init_std=width**-0.5, dropout=0.1, **ids, **sides,
    )  # fmt: skip
    model = MarianMTModel(config)
    model.generation_config.bad_words_ids = None  # Marian's default forbids a token that this vocabulary lacks
    return model
