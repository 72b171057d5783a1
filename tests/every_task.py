"""A tiny model and a file of data for every kind of task, as a user would have them on disk."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.io import wavfile
from transformers import (
    BertForMultipleChoice,
    BertForQuestionAnswering,
    BertForTokenClassification,
    BertModel,
    ViTConfig,
    ViTForImageClassification,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)

from headcount import save
from headcount.tasks.text import word_tokenizer
from tiny_models import bert, gpt, marian

WORDS = "a the fine dull film dog cat runs sleeps un le chien chat court dort bien mal"
KINDS = (
    *("classification", "regression", "tagging", "answering", "choice", "endings", "embedding"),
    *("images", "speech", "translation", "summarization", "causal"),
)
TAGS = ("B-animal", "I-animal", "O", "S-thing")


def every_task(kind: str, folder: Path, size: int = 12) -> tuple[Path, Path]:
    """A saved model of this kind, and a file (or folder) of data for it; the same for the same arguments."""
    rng = np.random.default_rng(len(kind))
    folder.mkdir(exist_ok=True)
    model, reader = MODELS[kind]()
    save(model, folder / "model", tokenizer=reader)
    return folder / "model", DATA.get(kind, partial(jsonl, ROWS.get(kind)))(folder, rng, size)


def sentence(rng, low=2, high=8):
    return " ".join(rng.choice(WORDS.split(), size=rng.integers(low, high)))


def jsonl(row, folder, rng, size):
    path = folder / "data.jsonl"
    path.write_text("\n".join(json.dumps(row(rng, i)) for i in range(size)) + "\n")
    return path


def conll(folder, rng, size):
    path = folder / "data.tsv"
    sentences = [[f"{word}\t{rng.choice(TAGS)}" for word in sentence(rng).split()] for _ in range(size)]
    path.write_text("\n\n".join("\n".join(one) for one in sentences) + "\n")
    return path


def squad(folder, rng, size):
    paragraphs = []
    for i in range(size):
        words = sentence(rng, 9, 14).split()
        answers = [" ".join(words[start : start + 2]) for start in (3, 5)]
        starts = [len(" ".join(words[:start])) + 1 for start in (3, 5)]
        given = [{"text": text, "answer_start": place} for text, place in zip(answers, starts, strict=True)]
        question = {"question": sentence(rng, 1, 3), "id": f"q{i}", "answers": given}
        paragraphs.append({"context": " ".join(words), "qas": [question]})
    path = folder / "data.json"
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "all", "paragraphs": paragraphs}]}))
    return path


def pictures(folder, rng, size):
    import PIL.Image

    for i in range(size):
        path = folder / "pictures" / ("bright", "dark")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 128, size=(20, 24, 3)) + 127 * (i % 2 == 0)
        PIL.Image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder / "pictures"


def recordings(folder, rng, size):
    (folder / "sounds").mkdir()
    lines = ["file\ttext"]
    for i in range(size):
        tone = np.sin(np.arange(8000) * rng.uniform(0.05, 0.5)) + 0.1 * rng.standard_normal(8000)
        wavfile.write(folder / "sounds" / f"{i}.wav", 16000, (8000 * tone).astype(np.int16))
        lines.append(f"{i}.wav\t{sentence(rng, 1, 3)}")
    path = folder / "sounds" / "transcripts.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


def listener():
    """A Whisper that hears one second, with a tokenizer of single characters."""
    letters = ["<|endoftext|>", "Ġ", *"abcdefghijklmnopqrstuvwxyz"]
    special = ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    vocabulary = {token: number for number, token in enumerate([*letters, *special])}
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[], add_prefix_space=False)
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    extractor = WhisperFeatureExtractor(feature_size=8, chunk_length=1)
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=len(vocabulary), num_mel_bins=8, d_model=16, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32,
        max_source_positions=50, max_target_positions=40, init_std=0.5, pad_token_id=0, bos_token_id=0, eos_token_id=0,
        decoder_start_token_id=vocabulary[special[0]], suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config).eval()
    model.generation_config.no_timestamps_token_id = vocabulary[special[3]]
    model.generation_config.is_multilingual = False
    return model, WhisperProcessor(extractor, tokenizer)


def seer():
    from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

    torch.manual_seed(0)
    names = {"bright": 0, "dark": 1}
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, image_size=16, patch_size=4,
        initializer_range=0.5, label2id=names, id2label={number: name for name, number in names.items()},
    )  # fmt: skip
    return ViTForImageClassification(config).eval(), ViTImageProcessorPil(size={"height": 16, "width": 16})


def tagger():
    names = {name: number for number, name in enumerate(TAGS)}
    labels = {"label2id": names, "id2label": {number: name for name, number in names.items()}}
    return bert(BertForTokenClassification, **labels), word_tokenizer(WORDS)


def reads(build, style="bert", length=None):
    def both():
        tokenizer = word_tokenizer(WORDS, style)
        if length is not None:
            tokenizer.model_max_length = length
        return build(), tokenizer

    return both


MODELS = {
    "classification": reads(bert),
    "regression": reads(partial(bert, num_labels=1)),
    "tagging": tagger,
    "answering": reads(partial(bert, BertForQuestionAnswering), length=12),  # so that some contexts need windows
    "choice": reads(partial(bert, BertForMultipleChoice)),
    "endings": reads(gpt, "gpt"),
    "embedding": reads(partial(bert, BertModel)),
    "images": seer,
    "speech": listener,
    "translation": reads(marian, "marian"),
    "summarization": reads(marian, "marian"),
    "causal": reads(gpt, "gpt"),
}
ROWS = {
    "classification": lambda rng, i: {"text": sentence(rng), "label": i % 2},
    "regression": lambda rng, i: {"text": sentence(rng), "score": float(rng.integers(0, 6)) / 2},
    "embedding": lambda rng, i: {
        "sentence1": sentence(rng), "sentence2": sentence(rng), "score": float(rng.integers(0, 6)),
    },
    "choice": lambda rng, i: {
        "question": sentence(rng), "choices": [sentence(rng) for _ in range(2 + i % 2)], "label": i % 2,
    },
    "endings": lambda rng, i: {
        "context": sentence(rng), "endings": [sentence(rng, 1, 4) for _ in range(2 + i % 2)], "label": i % 2,
    },
    "translation": lambda rng, i: {"en": sentence(rng), "fr": sentence(rng)},
    "summarization": lambda rng, i: {"article": sentence(rng), "summary": sentence(rng)},
    "causal": lambda rng, i: {"text": sentence(rng)},
}  # fmt: skip
DATA = {"tagging": conll, "answering": squad, "images": pictures, "speech": recordings}
