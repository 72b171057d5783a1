"""Train a small Marian-layout translator on two aligned text files, with headcount's own training loop.

    python -m recipes.train_translator --train train.en train.de --val val.en val.de --out en-de

6 + 6 layers of 8 heads, one BPE vocabulary for both languages, trained on the data itself. The default settings were
chosen for Multi30k, English to German. Scores vary with `--seed`: `headcount evaluate en-de/model …` measures yours.

`OUT/checkpoints/epoch-N` keeps every epoch, `OUT/model` the last one, `OUT/scores.json` the validation BLEU of each.
The same command resumes after the last finished epoch, and ends in the same weights, bit for bit, as a run that was
never stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from recipes.asking import amount, count, files, in_one_sentence, place
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, MarianConfig, MarianMTModel, PreTrainedTokenizerFast

from headcount.engine import batches_by_length
from headcount.errors import HeadcountError
from headcount.evaluation import evaluate
from headcount.surgery import save
from headcount.tasks import Translation
from headcount.training import Checkpointer, Training

SPECIAL = ["<pad>", "</s>", "<unk>"]
MADE = ("tokenizer", "resume", "checkpoints", "model", "scores.json")  # in OUT


def main(args: Sequence[str] | None = None) -> None:
    options = arguments(args)
    if options.width % options.heads:
        raise HeadcountError(f"--width {options.width} cannot be divided among --heads {options.heads}")
    files(*options.train, *options.val)
    out = place(options.out, MADE)
    tokenizer = shared_tokenizer(out / "tokenizer", options)
    train, val = (
        Translation(texts, tokenizer, target_data=targets, max_length=options.max_length)
        for texts, targets in (options.train, options.val)
    )
    val = val.subset(range(min(options.val_limit, len(val))))
    torch.manual_seed(options.seed)
    model = new_model(len(tokenizer), options)
    for remark in train.check(model):
        print(remark)
    train_and_keep(model, tokenizer, train, val, out, options)


def shared_tokenizer(directory: Path, options: argparse.Namespace) -> Any:
    """One byte-pair encoding of both languages; trained once, then read from where it was saved."""
    if directory.is_dir():
        return AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    bpe = Tokenizer(models.BPE(unk_token="<unk>"))
    bpe.normalizer = normalizers.NFKC()
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=options.vocabulary, special_tokens=SPECIAL, show_progress=False)
    bpe.train(list(options.train), trainer)
    bpe.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
        model_max_length=options.max_length,
    )  # fmt: skip
    tokenizer.save_pretrained(directory)
    return tokenizer


def new_model(vocabulary: int, options: argparse.Namespace) -> Any:
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", options.layers), ("attention_heads", options.heads), ("ffn_dim", options.ffn))
    }
    config = MarianConfig(
        vocab_size=vocabulary, decoder_vocab_size=vocabulary, d_model=options.width, activation_function="relu",
        dropout=options.dropout, scale_embedding=True, max_position_embeddings=options.max_length,
        pad_token_id=0, eos_token_id=1, decoder_start_token_id=0, forced_eos_token_id=None,
        **sides,
    )  # fmt: skip
    model = MarianMTModel(config)
    model.generation_config.bad_words_ids = None  # Marian's default forbids a token that this vocabulary lacks
    return model


class TranslatorTraining(Training):
    """headcount's training loop with smoothed labels, and a learning rate that falls with the square root of time."""

    def __init__(self, model: Any, task: Any, options: argparse.Namespace) -> None:
        group = {"params": list(model.parameters()), "lr": options.lr, "betas": (0.9, 0.98), "fused": True}
        pairs = zip(task.features["input_ids"], task.labels, strict=True)
        self.lengths = [max(len(source), len(target)) for source, target in pairs]
        batches = batches_by_length(self.lengths, options.tokens)
        super().__init__(model, task, [group], batches=batches, epochs=options.epochs, seed=options.seed)
        self.options = options

    def plan(self, epoch: int) -> list[Sequence[int]]:
        """Batches of the same sizes in every epoch; which of the pairs of one length are together changes."""
        order = np.random.default_rng([self.seed, epoch, 1]).permutation(len(self.lengths)).tolist()
        mixed = iter(sorted(order, key=self.lengths.__getitem__))
        self.batches = [list(islice(mixed, len(batch))) for batch in self.batches]
        return super().plan(epoch)

    def loss(self, step: int, batch: Any) -> Any:
        logits = self.task.outputs(self.model, batch)  # (B, T, V)
        return cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), label_smoothing=self.options.smoothing)

    def rate(self, step: int) -> float:
        return rate(step / len(self.batches), self.options)


def train_and_keep(model: Any, tokenizer: Any, train: Any, val: Any, out: Path, options: argparse.Namespace) -> None:
    """Train, translate the validation data after each epoch, and keep every epoch's model."""
    training = TranslatorTraining(model, train, options)
    settled = {name: value for name, value in vars(options).items() if name not in ("out", "epochs")}
    signature = {"train": train.signature(), "options": settled}  # a run can be made longer or shorter on the way
    checkpoint = Checkpointer(out / "resume", signature=signature)
    scores = checkpoint.read(lambda state: [float(score) for score in state["scores"]]) or []
    if scores:
        checkpoint.restore(model, training.optimizer)
    begun = time.monotonic()

    def finished(epoch: int) -> None:
        nonlocal begun
        scores.append(evaluate(model, val).score())
        spent, begun = (time.monotonic() - begun) / 60, time.monotonic()
        loss = training.running_loss
        print(f"epoch {epoch}: loss {loss:.3f}, BLEU {scores[-1]:.2f}, {spent:.1f} minutes", flush=True)
        save(model, out / "checkpoints" / f"epoch-{epoch}", tokenizer=tokenizer)
        checkpoint.keep({"scores": scores}, model, training.optimizer)

    training.run(len(scores), finished)
    save(model, out / "model", tokenizer=tokenizer)
    named = {f"epoch-{n}": round(score, 2) for n, score in enumerate(scores, start=1)}
    (out / "scores.json").write_text(json.dumps({f"bleu_{len(val)}_val_sentences_greedy": named}, indent=1))
    print(f"saved to {out / 'model'}: BLEU {scores[-1]:.2f} on {len(val)} sentences of {options.val[0]}, greedy")


def rate(epochs: float, options: argparse.Namespace) -> float:
    """The share of the peak learning rate after some epochs: linear warm-up, inverse square root, and a linear end.

    >>> given = argparse.Namespace(warmup=2.0, epochs=10, decay=2.0, constant=False)
    >>> [round(rate(x, given), 2) for x in (1, 2, 8, 9, 10)]
    [0.5, 1.0, 0.5, 0.24, 0.0]
    >>> [rate(x, argparse.Namespace(warmup=2.0, constant=True)) for x in (1, 2, 10)]
    [0.5, 1.0, 1.0]
    """
    if options.constant:
        return min(epochs / options.warmup, 1.0)
    end = min(1.0, (options.epochs - epochs) / options.decay)
    return min(epochs / options.warmup, (options.warmup / max(epochs, 1e-9)) ** 0.5) * end


def arguments(args: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--train", "--val"):
        parser.add_argument(name, nargs=2, required=True, metavar=("SOURCE", "TARGET"), help="aligned text files")
    parser.add_argument("--out", required=True)
    parser.add_argument("--layers", type=count(), default=6, help="of the encoder, and of the decoder")
    parser.add_argument("--heads", type=count(), default=8)
    parser.add_argument("--width", type=count(), default=128)
    parser.add_argument("--ffn", type=count(), default=512)
    parser.add_argument("--vocabulary", type=count(10), default=4000, help="pieces, shared by both languages")
    parser.add_argument("--epochs", type=count(), default=10)
    parser.add_argument("--tokens", type=count(), default=2000, help="per batch and side, with padding")
    parser.add_argument("--lr", type=amount(), default=1.5e-3)
    parser.add_argument("--warmup", type=amount(), default=3.0, help="epochs in which the learning rate rises")
    parser.add_argument("--decay", type=amount(), default=4.0, help="epochs at the end in which it falls to zero")
    parser.add_argument("--constant", action="store_true", help="hold the learning rate after the warm-up: no decay")
    parser.add_argument("--dropout", type=amount(1, zero=True), default=0.15)
    parser.add_argument("--smoothing", type=amount(1, zero=True), default=0.1, help="of the labels")
    parser.add_argument("--max-length", type=count(2), default=128)
    parser.add_argument("--val-limit", type=count(), default=300, help="sentences to translate after each epoch")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(args)


if __name__ == "__main__":
    in_one_sentence(main)
