"""`open_onnx`: an exported file as a model that every task can measure, generators included.

The model is built from the configuration in the file, without weights: its class, configuration and anatomy are those
of the model that was exported, and its `forward` is onnxruntime's. `generate` keeps the cache between the steps.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutputWithPast, Seq2SeqLMOutput

from headcount.errors import HeadcountError
from headcount.export.onnx_runtime import OnnxModel
from headcount.structure import generation_config, mark_exported, put_mixin, remember_origin
from headcount.surgery import build_empty, model_class, parse_config

if TYPE_CHECKING:
    from headcount.export.onnx_runtime import Arrays

FULL_CACHE = ("sliding_window", "layer_types", "attention_chunk_size")  # what would shorten the cache: the graph masks


def open_onnx(file: str | Path, threads: int | None = None) -> Any:
    """A file that `export_onnx` wrote, as a model to give to `evaluate` or `model.generate`.

    >>> import tempfile
    >>> from headcount import evaluate, export_onnx
    >>> from headcount.tasks.classification import toy_classifier
    >>> model, task = toy_classifier()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     exported = open_onnx(export_onnx(model, f"{folder}/model.onnx").file)
    ...     evaluate(exported, task).metric.name
    'accuracy'

    file: as it was given to `export_onnx`. threads: for computing one operator; all cores by default.

    It runs on the CPU. Its heads can be counted, but not masked or removed: they are fixed in the graph.
    """
    file = Path(file)
    export = OnnxModel(file, threads)
    facts = export.facts()
    if "config" not in facts:
        raise HeadcountError(
            f"{file} does not say which model it is", advice="export it with headcount, which writes its configuration"
        )
    config = parse_config(json.loads(facts["config"]), file)
    model: Any = build_empty(config, model_class(config, file))
    if "generation" in facts:
        model.generation_config = generation_config(json.loads(facts["generation"]))
    for name in FULL_CACHE:
        if hasattr(config, name):
            setattr(config, name, None)
    put_mixin(model, OnnxBacked)
    model.__dict__["headcount_onnx"] = export
    forward = _forward(export)
    forward.__signature__ = inspect.signature(type(model).forward)  # type: ignore[attr-defined]
    model.__dict__["forward"] = MethodType(forward, model)
    model.register_buffer("file_hash", _hash(export.files))  # so that signatures know one file from another
    mark_exported(model, str(file))
    remember_origin(model, file)
    return model.eval()


class OnnxBacked:
    """Goes in front of a model class whose weights are in an ONNX file."""

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def get_encoder(self, *args: Any, **kwargs: Any) -> Any:
        """What `generate` runs before its first step."""
        export = self.__dict__["headcount_onnx"]
        return super().get_encoder(*args, **kwargs) if export.decoder is None else OnnxEncoder(self)  # type: ignore[misc]


class OnnxEncoder(nn.Module):
    """The encoder's file: its keys and values stay here, and what it puts out numbers the rows they belong to.

    Beam search repeats and reorders rows of that output, so the numbers always tell which keys and values to read.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.__dict__["model"] = model

    def forward(self, **kwargs: Any) -> BaseModelOutput:  # by this name, `generate` knows that it takes everything
        export = self.model.__dict__["headcount_onnx"]
        arrays = _numpy(kwargs)
        self.model.__dict__["headcount_cross"] = export.encode(arrays)
        rows = torch.arange(len(next(iter(arrays.values()))), dtype=torch.float32)
        length = arrays["attention_mask"].shape[1] if "attention_mask" in arrays else 1
        return BaseModelOutput(last_hidden_state=rows[:, None, None].expand(-1, length, 1).contiguous())  # type: ignore[arg-type]


class Named(dict[str, Any]):
    """Outputs by name, as an attribute or an item, and by number."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)


def _forward(export: OnnxModel) -> Any:
    """The `forward` of a model that is one graph, of a decoder with its cache, or of an encoder-decoder."""

    def plain(model: Any, *args: Any, **inputs: Any) -> Named:
        named = _bound(model, args, inputs)
        return Named({name: torch.from_numpy(value) for name, value in export.forward(_numpy(named)).items()})

    def decoder(model: Any, *args: Any, **inputs: Any) -> CausalLMOutputWithPast:
        named = _bound(model, args, inputs)
        ids, cache = named["input_ids"], named.get("past_key_values")
        mask = named.get("attention_mask")
        past = 0 if cache is None else cache.get_seq_length()
        mask = ids.new_ones(len(ids), past + ids.shape[1]) if mask is None else mask
        state = {"attention_mask": mask.numpy(), **_past(export, cache, len(ids))}
        logits, cache = _step(export, state, ids, cache, past)
        return CausalLMOutputWithPast(logits=logits, past_key_values=cache)  # type: ignore[arg-type]

    def translator(model: Any, *args: Any, **inputs: Any) -> Seq2SeqLMOutput:
        named = _bound(model, args, inputs)
        source = named.get("encoder_outputs")
        if source is None:
            source = model.get_encoder()(**{name: value for name, value in named.items() if "decoder" not in name})
        rows = source[0][:, 0, 0].long().numpy()
        cache = named.get("past_key_values")
        own = getattr(cache, "self_attention_cache", cache)
        past = 0 if own is None else own.get_seq_length()
        ids = named["decoder_input_ids"]
        cross = {name: value[rows] for name, value in model.__dict__["headcount_cross"].items()}
        state = {**cross, **_past(export, own, len(ids))}
        if named.get("attention_mask") is not None:
            state["attention_mask"] = named["attention_mask"].numpy()
        logits, own = _step(export, state, ids, own, past)
        kept = cache if isinstance(cache, EncoderDecoderCache) else EncoderDecoderCache(own, DynamicCache())
        return Seq2SeqLMOutput(logits=logits, past_key_values=kept, encoder_last_hidden_state=source[0])  # type: ignore[arg-type]

    if not export.generates:
        return plain
    return decoder if export.decoder is None else translator


def _step(export: OnnxModel, state: Arrays, ids: Tensor, cache: Any, past: int) -> tuple[Tensor, Any]:
    """The logits of some tokens, and the cache after them."""
    logits, state = export.step(state, ids.numpy())
    cache = DynamicCache() if cache is None else cache
    for layer in range(sum(name.startswith("past.") for name in state) // 2):
        new = [torch.from_numpy(state[f"past.{layer}.{part}"][:, :, past:]) for part in ("key", "value")]
        cache.update(*new, layer)  # (B, heads, T, head_dim)
    return torch.from_numpy(logits), cache


def _past(export: OnnxModel, cache: Any, batch: int) -> Arrays:
    """The cache as the graph takes it; an empty one has seen nothing."""
    if cache is None or not cache.get_seq_length():
        return export.empty_past(batch)
    parts = {"key": "keys", "value": "values"}
    names = (name.split(".") for name in export.empty_past(batch))
    return {f"past.{layer}.{part}": getattr(cache.layers[int(layer)], parts[part]).numpy() for _, layer, part in names}


def _bound(model: Any, args: tuple[Any, ...], inputs: dict[str, Any]) -> dict[str, Any]:
    names = list(inspect.signature(model.forward).parameters)
    return {**dict(zip(names, args, strict=False)), **inputs}


def _numpy(inputs: dict[str, Any]) -> Arrays:
    arrays = {name: value.detach().cpu().numpy() for name, value in inputs.items() if isinstance(value, Tensor)}
    if "input_ids" in arrays:  # a graph has no default: without a mask, everything is read
        arrays.setdefault("attention_mask", np.ones_like(arrays["input_ids"]))
    return arrays


def _hash(files: tuple[Path, ...]) -> Tensor:
    found = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            for chunk in iter(lambda: stream.read(2**20), b""):
                found.update(chunk)
    return torch.frombuffer(bytearray(found.digest()), dtype=torch.uint8)
