"""What `config.json` says a model is: its class and its layout, without its weights and without running its code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from headcount.errors import BadCheckpoint, first_line
from headcount.surgery.checkpoint import read_json
from headcount.surgery.record import apply_record, check_record

# The most that a setting may ask for, by a word of its name; no honest model comes near.
MOST = {"layer": 1000, "depth": 1000, "expert": 10_000, "block": 10**6, "label": 10**6}
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
