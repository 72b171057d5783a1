"""The model that a command names, on its device, and its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from headcount.errors import HeadcountError, first_line
from headcount.model_directory import fetch
from headcount.structure import remember_origin
from headcount.surgery import load

DTYPES = {"saved": "auto", "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
VOCABULARIES = (
    "tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
    "source.spm", "spm.model", "tekken.json",
)  # fmt: skip


def load_model(name: str, device: str = "auto", dtype: str = "auto") -> tuple[Any, Any]:
    """A model and its tokenizer."""
    return load_weights(name, device, dtype), load_tokenizer(fetch(name), name)


def load_weights(name: str, device: str = "auto", dtype: str = "auto") -> Any:
    """A model alone; on a CPU the dtype `auto` is float32, elsewhere what the weights were saved in.

    device: `spread` puts the layers of a large model on all GPUs, then in memory, as accelerate's device map does.
    """
    place = choose_device("auto" if device == "spread" else device)
    kind: Any = (torch.float32 if place.type == "cpu" else "auto") if dtype == "auto" else DTYPES[dtype]
    model: Any = load(fetch(name), dtype=kind, **({"device_map": "auto"} if device == "spread" else {}))
    remember_origin(model, name)
    return model if device == "spread" else model.to(place)


def load_tokenizer(directory: Any, name: str) -> Any:
    """The tokenizer beside a model; where there is none, transformers would return an empty one."""
    if not any((Path(directory) / file).is_file() for file in VOCABULARIES):
        raise HeadcountError(f"{name} has no usable tokenizer beside it: none of {', '.join(VOCABULARIES)}")
    try:
        return AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizers fail with errors of many kinds
        raise HeadcountError(f"{name} has no usable tokenizer beside it: {first_line(error)}") from error


def choose_device(name: str) -> torch.device:
    """The device of that name; `auto` is the fastest one available.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    if not available[name.partition(":")[0]]:
        raise HeadcountError(f"this machine has no {name} device", advice="use {device} cpu")
    return torch.device(name)
