"""`load`: rebuild a model with the heads that its checkpoint has, and load it strictly."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.initialization import no_init_weights

from headcount.anatomy import anatomy
from headcount.errors import BadCheckpoint
from headcount.surgery.carve import carve, name_heads
from headcount.surgery.checkpoint import Checkpoint, read_checkpoint, read_json


def load(directory: str | Path, **options: Any) -> PreTrainedModel:
    """Load a model that `save` (or `save_pretrained`) has written, pruned or not, in evaluation mode.

    >>> load("./no-such-directory")
    Traceback (most recent call last):
    headcount.errors.BadCheckpoint: ./no-such-directory is not a directory; give the directory of a saved model

    `directory` may also be the id of a model on the hub, whose files are fetched first. `options` go to
    `from_pretrained`: `dtype`, `device_map`, `attn_implementation`. Files are checked before anything is loaded; no code
    from the directory is run, and nothing is unpickled.
    """
    checkpoint = read_checkpoint(fetch(directory))
    config = read_config(checkpoint.directory)
    cls = model_class(config, checkpoint.directory)
    _check_shapes(checkpoint, cls, config)
    loader: Any = type(cls.__name__, (cls,), {"__init__": _carving_init(cls), "__module__": cls.__module__})
    try:
        model, info = loader.from_pretrained(
            checkpoint.directory,
            config=config,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            **options,
        )
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise BadCheckpoint(f"{checkpoint.directory} cannot be loaded: {str(error).splitlines()[0]}") from error
    model.__class__ = cls
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[problem] and "headcount" in checkpoint.config:
            what = problem.replace("_keys", "")
            raise BadCheckpoint(f"{checkpoint.directory} has {what} weights: {sorted(map(str, info[problem]))[0]}")
    return model.eval()


def fetch(name: str | Path, patterns: tuple[str, ...] = ("*.json", "*.safetensors", "*.model", "*.txt")) -> Path:
    """The directory of a model; one that is named by its hub id is downloaded first."""
    if Path(name).exists() or not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", str(name)):
        return Path(name)
    try:
        return Path(snapshot_download(str(name), allow_patterns=list(patterns)))
    except Exception as error:  # the hub's client raises errors of many kinds, with or without a network
        raise BadCheckpoint(
            f"{name} is not a directory here, and fetching it from the hub failed: {str(error).splitlines()[0]}"
        ) from error


def read_config(directory: Path) -> PreTrainedConfig:
    """The configuration as transformers understands it, with a record of heads that makes sense."""
    path = directory / "config.json"
    content = read_json(path)
    _check_record(content.get("headcount"), path)
    if content.get("model_type") not in transformers.CONFIG_MAPPING:
        raise BadCheckpoint(f"{path} names the model type {content.get('model_type')!r}, unknown to transformers")
    try:
        return transformers.AutoConfig.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # transformers validates configurations with errors of many kinds
        raise BadCheckpoint(f"{path} is not a usable configuration: {str(error).splitlines()[0]}") from error


def model_class(config: Any, where: Any) -> type[PreTrainedModel]:
    """The transformers class that a configuration names."""
    name = next(iter(getattr(config, "architectures", None) or []), None)
    cls = getattr(transformers, name, None) if isinstance(name, str) else None
    if not (isinstance(cls, type) and issubclass(cls, PreTrainedModel)):
        raise BadCheckpoint(f"{where}: config.json names the architecture {name!r}, which transformers does not have")
    return cls


def apply_record(model: Any) -> None:
    """Carve a freshly built model down to the heads that its configuration records."""
    sites = (getattr(model.config, "headcount", None) or {}).get("sites", {})
    for site in anatomy(model).sites if sites else ():
        record = sites.get(site.name)
        if record is None:
            raise BadCheckpoint(f"config.json does not say which heads {site.name} has left")
        if record["of"] == site.original and len(record["kept"]) < site.original:
            carve(site, record["kept"])
        elif len(record["kept"]) == len(site.kept):
            name_heads(site, record["kept"], record["of"], record["group"])
        else:
            raise BadCheckpoint(f"config.json records heads of {site.name} that the model does not have")


def _carving_init(cls: type[PreTrainedModel]) -> Any:
    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        cls.__init__(self, config, *args, **kwargs)
        apply_record(self)

    return __init__


def build_empty(config: Any, cls: type[PreTrainedModel]) -> PreTrainedModel:
    """The model without weights, on the meta device, with the heads that its configuration records."""
    with torch.device("meta"), no_init_weights():
        model = cls(config)
        apply_record(model)
    return model


def _check_record(record: Any, path: Path) -> None:
    if record is None:
        return
    sites = record.get("sites") if isinstance(record, dict) else None
    if not isinstance(sites, dict):
        raise BadCheckpoint(f"{path}: 'headcount' does not record heads; save the model again with headcount.save")
    for name, entry in sites.items():
        try:
            kept, original, group = entry["kept"], entry["of"], entry["group"]
            numbers = [original, group, *kept]
            sane = all(type(number) is int for number in numbers) and 1 <= group <= original
            sane = sane and kept == sorted(set(kept)) and all(0 <= index < original for index in kept)
        except (TypeError, KeyError):
            sane = False
        if not sane:
            raise BadCheckpoint(f"{path}: the heads recorded for {name} make no sense: {str(entry)[:80]}")


def _check_shapes(checkpoint: Checkpoint, cls: type[PreTrainedModel], config: Any) -> None:
    """For a pruned checkpoint, compare every tensor's shape with the model's before anything is loaded."""
    if "headcount" not in checkpoint.config:
        return
    expected = saved_shapes(build_empty(config, cls))
    for name, shape in checkpoint.shapes.items():
        if name in expected and expected[name] != shape:
            raise BadCheckpoint(
                f"{checkpoint.directory / checkpoint.files[name]}: {name} has shape {list(shape)}, "
                f"but the heads in config.json make it {list(expected[name])}"
            )


def saved_shapes(model: PreTrainedModel) -> dict[str, tuple[int, ...]]:
    """Tensor shapes under the names that `save_pretrained` writes (ViT's differ from its modules')."""
    state = revert_weight_conversion(model, model.state_dict())
    return {name: tuple(tensor.shape) for name, tensor in state.items()}
