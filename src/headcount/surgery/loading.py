"""`load`: rebuild a model with the heads that its checkpoint has, and load it strictly.

Files may come from anywhere, so they are read with suspicion: JSON and safetensors headers only, nothing executed, and
no number believed that would take more memory than a real model could.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel

from headcount.errors import BadCheckpoint, first_line
from headcount.files import path_of, read_object
from headcount.model_directory import CONFIG, fetch, refuse_unlike_model
from headcount.structure import (
    ALIGNMENT,
    built_empty,
    built_with_weights,
    came_from,
    generation_config,
    recorded_sites,
    remember_origin,
    saved_shapes,
)
from headcount.surgery.other_libraries import class_for
from headcount.surgery.record import apply_record, check_record

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_JSON = 256 * 2**20  # bytes; real configurations and indices are far smaller
# The most that a setting may ask for, by a word of its name; real models stay far below.
MOST = {"layer": 1000, "depth": 1000, "expert": 10_000, "block": 10**6, "label": 10**6}


def load(directory: str | Path, **options: Any) -> PreTrainedModel:
    """Load a model that `save` or `save_pretrained` wrote, pruned or not, in evaluation mode.

    >>> load("./no-such-directory")
    Traceback (most recent call last):
    headcount.errors.BadCheckpoint: no-such-directory is not a directory; give the directory of a saved model

    directory: or the id of a model on the hub, whose files are fetched first.
    options: for `from_pretrained`: `dtype`, `device_map`, `attn_implementation`.

    Files are checked before anything is loaded; no code from the directory is run, and nothing is unpickled.
    """
    path_of(directory, "directory")  # refuses what is neither a path nor a name
    checkpoint = read_checkpoint(fetch(directory))
    config = read_config(checkpoint.directory)
    cls = model_class(config, checkpoint.directory)
    _check_shapes(checkpoint, build_empty(config, cls))
    options.setdefault("generation_config", read_generation_config(checkpoint.directory))
    try:
        builder = class_for(cls.__name__) if recorded_sites(config) else cls
        model, missing, strange = built_with_weights(builder, config, _weights(checkpoint), **options)
    except (SafetensorError, OSError, RuntimeError, ValueError, ImportError, AttributeError, LookupError) as error:
        raise BadCheckpoint(f"{checkpoint.directory} cannot be loaded: {first_line(error)}") from error
    remember_origin(model, checkpoint.directory)
    if missing:
        raise BadCheckpoint(f"{checkpoint.directory} has no weights for {min(missing)}, which {cls.__name__} needs")
    if strange and "headcount" in checkpoint.config:
        raise BadCheckpoint(f"{checkpoint.directory} has weights that {cls.__name__} does not know: {min(strange)}")
    _align(model)
    return model.eval()


def model_class(config: Any, directory: Any) -> type[PreTrainedModel]:
    """The transformers class that a configuration names."""
    path = Path(directory) / CONFIG
    names = getattr(config, "architectures", None)
    if not isinstance(names, list) or not names:
        raise BadCheckpoint(f"{path} does not say which class the model is: it has no 'architectures'")
    cls = getattr(transformers, names[0], None) if isinstance(names[0], str) else None
    if not (isinstance(cls, type) and issubclass(cls, PreTrainedModel)):
        raise BadCheckpoint(f"{path} names the architecture {names[0]!r}, which transformers does not have")
    if cls.config_class is None or not isinstance(config, cls.config_class):
        raise BadCheckpoint(f"{path} names the architecture {names[0]!r}, which is not a {config.model_type} model")
    return cls


def build_empty(config: Any, cls: type[PreTrainedModel]) -> PreTrainedModel:
    """The model without weights, on the meta device, with the heads that its configuration records."""
    try:
        model = built_empty(cls, config)
    except Exception as error:  # a configuration may fail anywhere in a model's code
        path = Path(came_from(config)) / CONFIG
        raise BadCheckpoint(f"{path} does not describe a working {cls.__name__}: {first_line(error)}") from error
    apply_record(model)
    return model


def _weights(checkpoint: ModelFiles) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for name in dict.fromkeys(checkpoint.files.values()):
        weights.update(load_file(checkpoint.directory / name))
    return weights


def _check_shapes(checkpoint: ModelFiles, expected: PreTrainedModel) -> None:
    """Compare every tensor's shape with the model's before anything is loaded."""
    shapes = saved_shapes(expected)
    for name, shape in checkpoint.shapes.items():
        if name in shapes and shapes[name] != shape:
            raise BadCheckpoint(
                f"{checkpoint.directory / checkpoint.files[name]}: {name} has shape {list(shape)}, "
                f"but {CONFIG} makes it {list(shapes[name])}"
            )


@torch.no_grad()
def _align(model: PreTrainedModel) -> None:
    """Move weights that start at a file's odd offsets: kernels are slower there, and differ in the last bit."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and tensor.data_ptr() % ALIGNMENT:
            tensor.data = tensor.data.clone()


MOST |= dict.fromkeys(("heads", "n_head", "head_dim", "head_size", "d_kv"), 2048)
MOST |= dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "intermediate_size", "d_ff", "n_inner"), 2**17)


@dataclass(frozen=True)
class ModelFiles:
    """A directory whose files are all there and whole: its configuration, and every tensor's shape and file."""

    directory: Path
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    files: dict[str, str]  # tensor name -> file name


def read_checkpoint(directory: str | Path) -> ModelFiles:
    """Check a model directory before anything of it is loaded; raises `BadCheckpoint` that names the file."""
    directory = Path(directory)
    refuse_unlike_model(directory)
    config = read_json(directory / CONFIG)
    if config.get("quantization_config"):
        raise BadCheckpoint(
            f"{directory / CONFIG}: the weights are quantized",
            advice="load the model with transformers to mask heads, or give an unquantized one to remove them",
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
    return ModelFiles(directory, config, shapes, files)


def _weight_files(directory: Path) -> dict[str, list[str]]:
    """The files that hold the weights, each with the tensors that the index expects there."""
    if (directory / WEIGHTS).exists():  # as in transformers, it has priority over an index
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
            f"{directory / pickles[0]} is a pickle, which can run code when it is read",
            advice=f"convert it to {WEIGHTS} first",
        )
    raise BadCheckpoint(f"{directory / WEIGHTS} is missing")


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file that must be there, or `BadCheckpoint`."""
    content = read_object(path, BadCheckpoint, most=MAX_JSON)
    if content is None:
        raise BadCheckpoint(f"{path} is missing")
    return content


def read_header(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor in a safetensors file whose header fits the file."""
    try:
        if not path.is_file():
            raise BadCheckpoint(f"{path} is missing")
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, OverflowError) as error:
        raise BadCheckpoint(
            f"{path} is not a safetensors file, or it is cut short or damaged: {first_line(error)}"
        ) from None


def read_config(directory: Path) -> PreTrainedConfig:
    """The configuration as transformers understands it, with a record of heads that makes sense in itself."""
    refuse_unlike_model(directory)
    config = parse_config(read_json(directory / CONFIG), directory / CONFIG)
    remember_origin(config, directory)
    return config


def parse_config(content: dict[str, Any], path: Path) -> PreTrainedConfig:
    """The configuration in what a file holds, which may come from anywhere."""
    content.pop("transformers_weights", None)  # would load weights from elsewhere than where they were checked
    check_record(content.get("headcount"), path)
    _refuse_kernels(content, path)
    _refuse_giants(content, path)
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        raise BadCheckpoint(f"{path} names the model type {kind!r}, unknown to transformers")
    try:
        return transformers.CONFIG_MAPPING[kind].from_dict(content)
    except Exception as error:  # transformers validates configurations with errors of many kinds
        raise BadCheckpoint(f"{path} is not a usable configuration: {first_line(error)}") from error


def read_generation_config(directory: Path) -> GenerationConfig:
    """From its own file, or, as older models keep it, from the model's configuration."""
    path = directory / "generation_config.json"
    apart = path.exists()
    content = read_json(path if apart else directory / CONFIG)
    try:
        return generation_config(content, of_model=not apart)
    except Exception as error:  # transformers validates it with errors of many kinds
        raise BadCheckpoint(f"{path} is not a usable generation configuration: {first_line(error)}") from error


def _refuse_giants(content: Any, path: Path) -> None:
    """Modules are built one by one even without weights: refuse numbers that would never end."""
    for key, value in content.items():
        if isinstance(value, dict) and key.endswith(("config", "encoder", "decoder")):  # not the names of labels
            _refuse_giants(value, path)
        most = next((most for word, most in MOST.items() if word in key), None)
        for number in value if isinstance(value, list) else [value]:
            if most is not None and isinstance(number, (int, float)) and number > most:
                raise BadCheckpoint(f"{path} asks for {str(number)[:30]} of {key}; no model has more than {most:,}")


def _refuse_kernels(content: Any, path: Path) -> None:
    """A kernel named as a repository would be fetched and run."""
    for key, value in content.items():
        if isinstance(value, dict):
            _refuse_kernels(value, path)
        elif ("attn_implementation" in key or "experts_implementation" in key) and "/" in str(value):
            raise BadCheckpoint(f"{path} asks for the kernel {value!r} from elsewhere, whose code would be run")
