"""`load`: rebuild a model with the heads that its checkpoint has, and load it strictly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from headcount.errors import BadCheckpoint, first_line
from headcount.files import path_of
from headcount.model_directory import CONFIG, fetch
from headcount.structure import (
    ALIGNMENT,
    built_empty,
    built_with_weights,
    came_from,
    recorded_sites,
    remember_origin,
    saved_shapes,
)
from headcount.surgery.checkpoint_format import apply_record
from headcount.surgery.model_files import ModelFiles, read_checkpoint, read_config, read_generation_config
from headcount.surgery.plain_transformers import class_for


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
