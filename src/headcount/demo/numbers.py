"""A translation task that needs no download: numbers in words, English to German, where units stand before tens."""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast

from headcount.demo.directory import find_packages
from headcount.surgery import save
from headcount.tasks import Translation
from headcount.training import Progress, fit

LARGEST = 999_999
SPECIAL = ["<pad>", "</s>", "<unk>"]


@dataclass(frozen=True)
class Sizes:
    """How many numbers to train on, to score heads on and to translate; epochs, which of them to keep, and layers."""

    train: int
    score: int
    test: int
    epochs: int
    kept: tuple[int, ...]
    layers: int = 3  # of the encoder, and of the decoder


FULL = Sizes(train=6000, score=300, test=300, epochs=16, kept=(1, 2, 4, 8, 16))
QUICK = Sizes(train=3000, score=100, test=100, epochs=8, kept=(2, 4, 8))


def write_numbers(out: Path, sizes: Sizes) -> dict[str, int]:
    """Write train, score and test, .en and .de, and say how many numbers each has; only score is a part of train."""
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


def train_translator(out: Path, sizes: Sizes, progress: Progress) -> Path:
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
