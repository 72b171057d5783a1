"""What lies in a model directory, read with suspicion: JSON and safetensors headers only, nothing executed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from headcount.errors import BadCheckpoint, first_line
from headcount.surgery.record import apply_record, check_record

# The most that a setting may ask for, by a word of its name; no honest model comes near.
MOST = {"layer": 1000, "depth": 1000, "expert": 10_000, "block": 10**6, "label": 10**6}


WEIGHTS, INDEX, ADAPTER = "model.safetensors", "model.safetensors.index.json", "adapter_config.json"
MAX_JSON = 256 * 2**20  # no honest configuration or index is larger


@dataclass(frozen=True)
class Checkpoint:
    """A directory whose files have been found whole: its configuration, and every tensor's shape and file."""

    directory: Path
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    files: dict[str, str]  # tensor name -> file name


def read_checkpoint(directory: str | Path) -> Checkpoint:
    """Check a model directory before anything of it is loaded; raises `BadCheckpoint` that names the file."""
    directory = Path(directory)
    if not directory.is_dir():
        raise BadCheckpoint(f"{directory} is not a directory; give the directory of a saved model")
    if (directory / ADAPTER).exists():
        raise BadCheckpoint(
            f"{directory / ADAPTER}: this is an adapter (PEFT); load it with peft, "
            "call merge_and_unload(), and save the model that it gives"
        )
    config = read_json(directory / "config.json")
    if config.get("quantization_config"):
        raise BadCheckpoint(
            f"{directory / 'config.json'}: the weights are quantized; load the model with transformers to mask heads, "
            "or give an unquantized one to remove them"
        )
    shapes: dict[str, tuple[int, ...]] = {}
    files: dict[str, str] = {}
    for name, expected in _weight_files(directory).items():
        found = read_header(directory / name)
        missing = [tensor for tensor in expected if tensor not in found]
        if missing:
            raise BadCheckpoint(f"{directory / name} lacks the tensor {missing[0]!r} that {INDEX} promises")
        shapes.update(found)
        files.update(dict.fromkeys(found, name))
    return Checkpoint(directory, config, shapes, files)


def _weight_files(directory: Path) -> dict[str, list[str]]:
    """The files that hold the weights, each with the tensors that the index expects there."""
    if (directory / WEIGHTS).exists():  # as in transformers, it goes before an index
        return {WEIGHTS: []}
    if (directory / INDEX).exists():
        mapping = read_json(directory / INDEX).get("weight_map")
        if not isinstance(mapping, dict) or not mapping:
            raise BadCheckpoint(f"{directory / INDEX} has no weight_map")
        files: dict[str, list[str]] = {}
        for tensor, name in mapping.items():
            if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
                raise BadCheckpoint(
                    f"{directory / INDEX} points to {name!r}, which is not a safetensors file beside it"
                )
            files.setdefault(name, []).append(tensor)
        return files
    pickles = sorted(
        path.name for path in directory.iterdir() if path.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt")
    )
    if pickles:
        raise BadCheckpoint(
            f"{directory / pickles[0]} is a pickle, which can run code when it is read; convert it to {WEIGHTS} first"
        )
    raise BadCheckpoint(f"{directory / WEIGHTS} is missing")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or `BadCheckpoint`."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise BadCheckpoint(f"{path} is too large to be a JSON file of a model")
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BadCheckpoint(f"{path} is missing") from None
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path} is not valid JSON: {first_line(error)}") from None
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read: {error.strerror}") from None
    if not isinstance(content, dict):
        raise BadCheckpoint(f"{path} is not a JSON object")
    return content


def read_header(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor in a safetensors file, after its header has been found to fit the file."""
    try:
        if not path.is_file():
            raise BadCheckpoint(f"{path} is missing")
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, OverflowError) as error:
        raise BadCheckpoint(
            f"{path} is not a safetensors file, or it is cut short or damaged: {first_line(error)}"
        ) from None


MOST |= dict.fromkeys(("heads", "n_head", "head_dim", "head_size", "d_kv"), 2048)
MOST |= dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim"), 2**17)


def read_config(directory: Path) -> PreTrainedConfig:
    """The configuration as transformers understands it, with a record of heads that makes sense."""
    path = directory / "config.json"
    content = read_json(path)
    content.pop("transformers_weights", None)  # weights elsewhere than where they were checked
    check_record(content.get("headcount"), path)
    _refuse_kernels(content, path)
    _refuse_giants(content, path)
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        raise BadCheckpoint(f"{path} names the model type {kind!r}, unknown to transformers")
    try:
        config = transformers.CONFIG_MAPPING[kind].from_dict(content)
    except Exception as error:  # transformers validates configurations with errors of many kinds
        raise BadCheckpoint(f"{path} is not a usable configuration: {first_line(error)}") from error
    config._name_or_path = str(directory)
    return config


def model_class(config: Any, directory: Any) -> type[PreTrainedModel]:
    """The transformers class that a configuration names."""
    path = Path(directory) / "config.json"
    names = getattr(config, "architectures", None)
    if not isinstance(names, list) or not names:
        raise BadCheckpoint(f"{path} does not say which class the model is: it has no 'architectures'")
    cls = getattr(transformers, names[0], None) if isinstance(names[0], str) else None
    if not (isinstance(cls, type) and issubclass(cls, PreTrainedModel)):
        raise BadCheckpoint(f"{path} names the architecture {names[0]!r}, which transformers does not have")
    if cls.config_class is None or not isinstance(config, cls.config_class):
        raise BadCheckpoint(f"{path} names the architecture {names[0]!r}, which is no {config.model_type} model")
    return cls


def build_empty(config: Any, cls: type[PreTrainedModel]) -> PreTrainedModel:
    """The model without weights, on the meta device, with the heads that its configuration records."""
    try:
        with torch.device("meta"), no_init_weights():
            model = cls(config)
    except Exception as error:  # a configuration may fail anywhere in a model's code
        path = Path(config._name_or_path) / "config.json"
        raise BadCheckpoint(f"{path} describes no {cls.__name__} that can be built: {first_line(error)}") from error
    apply_record(model)
    return model


def _refuse_giants(content: Any, path: Path) -> None:
    """What is counted out one by one, even without weights, must be of a number that can be counted out."""
    for key, value in content.items():
        if isinstance(value, dict) and key.endswith(("config", "encoder", "decoder")):  # no names of labels
            _refuse_giants(value, path)
        most = next((most for word, most in MOST.items() if word in key), None)
        for number in value if isinstance(value, list) else [value]:
            if most is not None and isinstance(number, (int, float)) and number > most:
                raise BadCheckpoint(f"{path} asks for {str(number)[:30]} of {key}; no model has more than {most:,}")


def _refuse_kernels(content: Any, path: Path) -> None:
    """A kernel that is named by a repository would be fetched and run."""
    for key, value in content.items():
        if isinstance(value, dict):
            _refuse_kernels(value, path)
        elif ("attn_implementation" in key or "experts_implementation" in key) and "/" in str(value):
            raise BadCheckpoint(f"{path} asks for the kernel {value!r} from elsewhere, whose code would be run")
