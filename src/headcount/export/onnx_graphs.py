"""What is exported: modules from plain tensors to plain tensors, with the cache of a generator spelled out.

A model that generates has its keys and values as inputs (`past.N.key`) and outputs (`present.N.key`), one pair per
decoder layer, each with as many heads as the layer has left; a layer without heads keeps one number per token, so that
the cache still knows its length. An encoder-decoder becomes two graphs: the encoder puts out what its decoder's
cross-attention reads (`cross.N.key`), the decoder takes it in, so that nothing is computed twice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from headcount.structure import anatomy, random_inputs, start_token

PARTS = ("key", "value")
BATCH, LENGTH = 2, 6  # of the texts that graphs are traced with; the graphs take any


@dataclass
class Graph:
    """What becomes one file: a module, the tensors it is traced with, and the names and free dimensions of each."""

    module: nn.Module
    inputs: dict[str, Tensor]
    open_sizes: dict[str, dict[int, str]]
    outputs: list[str]

    def renamed(self, name: Callable[[str], str]) -> Graph:
        """The same graph, with other names for what goes in and out."""
        inputs = {name(old): tensor for old, tensor in self.inputs.items()}
        sizes = {name(old): open_sizes for old, open_sizes in self.open_sizes.items()}
        return Graph(self.module, inputs, sizes, [name(old) for old in self.outputs])


def graphs(model: Any) -> dict[str, Graph]:
    """The graphs of a model: one, or an `encoder` and a `decoder`."""
    if not model.can_generate():
        return {"model": _plain(model)}
    if model.config.is_encoder_decoder:
        return _translator(model)
    return {"model": generator(model)}


def _plain(model: Any) -> Graph:
    inputs = random_inputs(model, BATCH, LENGTH, padding="right")
    with torch.no_grad():
        output = model(**inputs, **_no_cache(model), return_dict=True)
    names = [name for name, value in output.items() if isinstance(value, Tensor)]
    sizes = {name: _text_sizes(name, tensor) for name, tensor in inputs.items()}
    return Graph(_Forward(model, list(inputs), names), inputs, sizes, names)


def generator(model: Any, *, positions_given: bool = False) -> Graph:
    """The graph of a decoder alone; its positions are derived from the mask unless they are an input, too."""
    ids = random_inputs(model, BATCH, LENGTH)["input_ids"]
    cache = DynamicCache()
    with torch.no_grad():
        model(input_ids=ids[:, :4], past_key_values=cache, use_cache=True)
    mask = torch.ones_like(ids)
    places = positions(model, mask, ids.shape[1] - 4) if positions_given else {}
    inputs = {"input_ids": ids[:, 4:], "attention_mask": mask, **places, **_named("past", cache)}
    sizes: dict[str, dict[int, str]] = {
        "input_ids": {0: "batch", 1: "length"},
        "attention_mask": {0: "batch", 1: "total"},
        **{name: {0: "batch", 1: "length"} for name in places},
        **{name: {0: "batch", 2: "past"} for name in inputs if name.startswith("past.")},
    }
    return Graph(_Decoder(model, list(inputs)), inputs, sizes, ["logits", *_named("present", cache)])


def _translator(model: Any) -> dict[str, Graph]:
    source = random_inputs(model, BATCH, LENGTH, padding="right")
    ids = source.pop("decoder_input_ids")
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    with torch.no_grad():
        model(**source, decoder_input_ids=ids[:, :4], past_key_values=cache, use_cache=True)
    full = [site.layer for site in anatomy(model).sites if site.kind == "cross" and site.kept]
    sizes = {name: _text_sizes(name, tensor, "source") for name, tensor in source.items()}
    cross = _named("cross", cache.cross_attention_cache, full)
    encoder = Graph(_Encoder(model, list(source), full), source, sizes, list(cross) or ["last_hidden_state"])
    past = _named("past", cache.self_attention_cache)
    mask = {name: tensor for name, tensor in source.items() if name == "attention_mask"}
    inputs = {"input_ids": ids[:, 4:], **mask, **cross, **past}
    sizes = {name: sizes.get(name, {0: "batch", 2: "source"}) for name in {**mask, **cross}}
    if not mask:  # sounds have one length
        sizes = {name: {0: "batch"} for name in cross}
    sizes |= {"input_ids": {0: "batch", 1: "length"}, **{name: {0: "batch", 2: "past"} for name in past}}
    lengths = None if mask else next((tensor.shape[2] for tensor in cross.values()), 1)
    outputs = ["logits", *_named("present", cache.self_attention_cache)]
    return {"encoder": encoder, "decoder": Graph(_CachedDecoder(model, list(inputs), lengths), inputs, sizes, outputs)}


def three_graphs(model: Any) -> dict[str, Graph]:
    """An encoder-decoder whose encoder puts out its states: the `encoder`, the decoder's `first` step and every `later`
    one. The first puts out, for every layer, `present.N.…` and `cross.N.…`, which a later one takes in."""
    found = _translator(model)
    source, later = found["encoder"].inputs, found["decoder"]
    encoder = Graph(_States(model, list(source)), source, found["encoder"].open_sizes, ["last_hidden_state"])
    with torch.no_grad():
        states = encoder.module(list(source.values()))[0]
    masked = "attention_mask" in later.inputs
    inputs = {"input_ids": later.inputs["input_ids"], "encoder_hidden_states": states}
    inputs |= {"attention_mask": later.inputs["attention_mask"]} if masked else {}
    of_source = {0: "batch", 1: "source"} if masked else {0: "batch"}  # sounds have one length
    sizes = dict.fromkeys(inputs, of_source) | {"input_ids": {0: "batch", 1: "length"}}
    layers = range(sum(name.endswith("key") for name in later.outputs))
    outputs = [f"{kind}.{layer}.{part}" for layer in layers for kind in ("present", "cross") for part in PARTS]
    first = Graph(_FirstStep(model), inputs, sizes, ["logits", *outputs])
    return {"encoder": encoder, "first": first, "later": later}


class _Forward(nn.Module):
    """Any model as it stands."""

    def __init__(self, model: Any, inputs: list[str], outputs: list[str]) -> None:
        super().__init__()
        self.model, self.inputs, self.outputs = model, inputs, outputs

    def forward(self, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        named = dict(zip(self.inputs, tensors, strict=True))
        output = self.model(**named, **_no_cache(self.model), return_dict=True)
        return tuple(output[name] for name in self.outputs)


class _Decoder(nn.Module):
    """A decoder alone: tokens, the mask of all tokens so far, and the cache."""

    def __init__(self, model: Any, inputs: list[str]) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        named = dict(zip(self.inputs, tensors, strict=True))
        ids, mask = named["input_ids"], named["attention_mask"]  # (B, T), (B, P + T)
        cache = _filled([tensor for name, tensor in named.items() if name.startswith("past.")])  # (B, heads, P, size)
        extra = positions(self.model, mask, ids.shape[1])
        extra |= {name: named[name] for name in extra if name in named}  # (B, T)
        output = self.model(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True, **extra)
        return output.logits, *_named("present", cache).values()


class _Encoder(nn.Module):
    """The encoder, and the keys and values that each cross-attention computes from its output.

    One step of the decoder fills the cache with them; nothing else of that step is exported.
    """

    def __init__(self, model: Any, inputs: list[str], full: list[int]) -> None:
        super().__init__()
        self.model, self.inputs, self.full = model, inputs, full

    def forward(self, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        named = dict(zip(self.inputs, tensors, strict=True))
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        first = tensors[0]
        start = torch.full((first.shape[0], 1), start_token(self.model.config), device=first.device)
        output = self.model(**named, decoder_input_ids=start, past_key_values=cache, use_cache=True)
        if not self.full:  # not read by the decoder, but a graph must have an output
            return (output.encoder_last_hidden_state,)
        return tuple(_named("cross", cache.cross_attention_cache, self.full).values())


class _CachedDecoder(nn.Module):
    """The decoder of an encoder-decoder: tokens, the source's mask, its keys and values, and the cache."""

    def __init__(self, model: Any, inputs: list[str], source_length: int | None) -> None:
        super().__init__()
        self.model, self.inputs, self.source_length = model, inputs, source_length

    def forward(self, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        named = dict(zip(self.inputs, tensors, strict=True))
        ids, mask = named.pop("input_ids"), named.pop("attention_mask", None)
        past = [tensor for name, tensor in named.items() if name.startswith("past.")]
        batch = ids.shape[0]
        nothing = past[0].new_zeros(batch, 1, 1, 1)  # for a cross-attention without heads, which does not look
        cross = []
        for layer in range(len(past) // 2):
            cross += [named.get(f"cross.{layer}.{part}", nothing) for part in PARTS]
        cache = EncoderDecoderCache(_filled(past), _filled(cross))
        cache.is_updated = dict.fromkeys(range(len(past) // 2), True)
        length: Any = self.source_length if mask is None else mask.shape[1]
        # The decoder asks for the encoder's output, but reads its keys and values from the cache.
        unread: Any = past[0].new_zeros(batch, length, self.model.config.hidden_size)
        source: dict[str, Any] = {"encoder_outputs": BaseModelOutput(last_hidden_state=unread)}
        source |= {} if mask is None else {"attention_mask": mask}
        output = self.model(decoder_input_ids=ids, past_key_values=cache, use_cache=True, **source)
        return output.logits, *_named("present", cache.self_attention_cache).values()


class _States(nn.Module):
    """The encoder alone."""

    def __init__(self, model: Any, inputs: list[str]) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        named = dict(zip(self.inputs, tensors, strict=True))
        return (self.model.get_encoder()(**named, return_dict=True).last_hidden_state,)


class _FirstStep(nn.Module):
    """The decoder with an empty cache: logits, and after them both caches of every layer."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tensors: list[Tensor]) -> tuple[Tensor, ...]:
        ids, states, *mask = tensors  # (B, T), (B, S, hidden), (B, S)
        cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        source: dict[str, Any] = {"encoder_outputs": BaseModelOutput(last_hidden_state=states)}  # type: ignore[arg-type]
        source |= {"attention_mask": mask[0]} if mask else {}
        output = self.model(decoder_input_ids=ids, past_key_values=cache, use_cache=True, **source)
        own: list[Any] = cache.self_attention_cache.layers
        cross: list[Any] = cache.cross_attention_cache.layers
        outputs = [output.logits]
        for layer, kept in enumerate(own):
            outputs += [kept.keys, kept.values]
            if layer < len(cross) and cross[layer].is_initialized:
                outputs += [cross[layer].keys, cross[layer].values]
            else:  # a cross-attention without heads
                outputs += [states[:, None, :, :1] * 1] * 2
        return tuple(outputs)


def positions(model: Any, mask: Tensor, length: int) -> dict[str, Tensor]:
    """The positions of the last `length` tokens, padding not counted, for a model that takes them."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return {}
    return {"position_ids": (mask.cumsum(-1) - 1).clamp(min=0)[:, -length:]}


def _no_cache(model: Any) -> dict[str, bool]:
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}


def _filled(tensors: list[Tensor]) -> DynamicCache:
    cache = DynamicCache()
    for layer in range(len(tensors) // 2):
        cache.update(tensors[2 * layer], tensors[2 * layer + 1], layer)
    return cache


def _named(prefix: str, cache: Any, layers: list[int] | None = None) -> dict[str, Tensor]:
    """The cache's tensors by name: `past.0.key`, `past.0.value`, …"""
    chosen = range(len(cache.layers)) if layers is None else layers
    named: dict[str, Tensor] = {}
    for layer in chosen:
        named[f"{prefix}.{layer}.key"] = cache.layers[layer].keys
        named[f"{prefix}.{layer}.value"] = cache.layers[layer].values
    return named


def _text_sizes(name: str, tensor: Tensor, length: str = "length") -> dict[int, str]:
    if tensor.dim() != 2:
        return {0: "batch"}
    return {0: "batch", 1: "decoder_length" if name.startswith("decoder_") else length}
