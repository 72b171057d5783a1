"""The model that a command names, on its device, and its tokenizer."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import AutoImageProcessor, AutoProcessor, AutoTokenizer

from headcount.errors import HeadcountError, first_line
from headcount.export import OnnxModel, open_onnx
from headcount.model_directory import DESCRIPTION, fetch
from headcount.runs import fingerprint
from headcount.structure import remember_origin
from headcount.surgery import build_empty, load, model_class, read_config, save
from headcount.tasks import refuse_unknown

DTYPES = {"saved": "auto", "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
GIVE_ORIGIN = "give the directory of that model, and export the result"
VOCABULARIES = (
    "tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model",
    "source.spm", "spm.model", "tekken.json",
)  # fmt: skip


def load_model(name: str, device: str = "auto", dtype: str = "auto") -> tuple[Any, Any]:
    """A model and its tokenizer; of images or sounds, its processor."""
    model = load_weights(name, device, dtype)
    return model, load_reader(tokenizer_directory(name), name, model)


def refuse_unsuited(name: str, kind: str | None, metric: str | None, labels: str = "data") -> None:
    """Refuse a model that has no task, or not this one, from its configuration: no weights are fetched or read."""
    if name.endswith(".onnx"):
        return
    directory = fetch(name, DESCRIPTION)
    config = read_config(directory)
    refuse_unknown(kind, metric, labels, build_empty(config, model_class(config, directory)))


def load_weights(name: str, device: str = "auto", dtype: str = "auto") -> Any:
    """A model alone; on a CPU the dtype `auto` is float32, elsewhere what the weights were saved in.

    device: `spread` puts the layers of a large model on all GPUs, then in memory, as accelerate's device map does.
    """
    if name.endswith(".onnx"):
        _refuse_device(name, device)
        return open_onnx(name)
    place = choose_device("auto" if device == "spread" else device)
    kind: Any = (torch.float32 if place.type == "cpu" else "auto") if dtype == "auto" else DTYPES[dtype]
    model: Any = load(fetch(name), dtype=kind, **({"device_map": "auto"} if device == "spread" else {}))
    remember_origin(model, name)
    return model if device == "spread" else model.to(place)


def saved_precision(name: str, model: Any) -> torch.dtype | None:
    """The half precision that a model was saved in, if it is computed with in float32 here."""
    if name.endswith(".onnx") or model.dtype != torch.float32:
        return None
    precision = read_config(fetch(name, DESCRIPTION)).dtype
    return precision if precision in (torch.float16, torch.bfloat16) else None


def save_in(precision: torch.dtype | None, model: Any, directory: Path, **options: Any) -> Path:
    """Save a model in a precision that its weights have been rounded to; the model itself is not changed."""
    return save(model if precision is None else copy.deepcopy(model).to(precision), directory, **options)


def _refuse_device(file: str, device: str) -> None:
    if device not in ("auto", "cpu"):
        raise HeadcountError(f"{file} runs on the CPU, not on {device}", advice="leave out {device}")


def load_origin(file: str, device: str = "auto") -> Any:
    """The model that an .onnx file was exported from: a graph can be run, but not searched, since it has no gradients.

    It is compared with what the file says of it, so that a file is never judged by another model.
    """
    _refuse_device(file, device)
    origin = OnnxModel(file).origin
    name = origin.get("name", "")
    if not Path(name).is_dir() and "/" not in name:  # a model on the hub has a slash in its name
        why = f"it does not say where the {origin.get('class', 'model')} is that it was exported from"
        raise HeadcountError(f"{file} is a graph without gradients, and {why}", advice=GIVE_ORIGIN)
    model = load_weights(name, "cpu", "float32")
    if fingerprint(model) != origin.get("fingerprint"):
        why = f"{name}, which it was exported from, has other weights now"
        raise HeadcountError(f"{file} is a graph without gradients, and {why}", advice=GIVE_ORIGIN)
    return model


def load_reader(directory: Any, name: str, model: Any) -> Any:
    """What makes a model's inputs: the tokenizer, or the processor of a model that sees or hears."""
    readers: dict[str, Any] = {"pixel_values": AutoImageProcessor, "input_features": AutoProcessor}
    reader = readers.get(getattr(model, "main_input_name", ""))
    if reader is None:
        return load_tokenizer(directory, name)
    try:
        return reader.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
    except ImportError as error:
        raise HeadcountError(f"images require the package Pillow: pip install 'headcount[tasks]' ({error})") from error
    except Exception as error:  # a damaged or missing file makes transformers raise errors of many kinds
        raise HeadcountError(f"{name} has no usable processor beside it: {first_line(error)}") from error


def tokenizer_directory(name: str) -> Path:
    """Where the tokenizer of a model is: in its directory, or for an .onnx file beside it or where the model was."""
    if not name.endswith(".onnx"):
        return fetch(name)
    beside = Path(name).parent
    if any((beside / file).is_file() for file in VOCABULARIES):
        return beside
    origin = OnnxModel(name).origin.get("name", "")
    if origin and Path(origin).is_dir():
        return fetch(origin)
    raise HeadcountError(
        f"no tokenizer was found beside {name}, and {origin or 'the model that it was exported from'} is not available",
        advice=f"copy the files of the tokenizer to {beside}",
    )


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
