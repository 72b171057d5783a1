"""What a model says of itself: its class, how much it can read, which ids it knows; and random inputs for it."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from headcount.structure.discovery import anatomy, family_of
from headcount.structure.transformers_internals import device_of

SPECIAL = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
VOCABULARY = 1000  # for a model that does not say how many tokens it knows


def is_any_of(model: Any, names: Collection[str]) -> bool:
    """Whether the model is of a class with one of these names, or of a subclass.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=4, vocab_size=8))
    >>> is_any_of(model, {"GPT2LMHeadModel"}), is_any_of(model, {"BertForMaskedLM"})
    (True, False)
    """
    return any(cls.__name__ in names for cls in type(model).__mro__)


def position_limit(model: Any) -> int | None:
    """How many tokens the model can read at once; None where nothing limits it (relative positions).

    >>> from transformers import RobertaConfig, RobertaModel
    >>> size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    >>> position_limit(RobertaModel(RobertaConfig(**size, max_position_embeddings=514)))  # 0 and 1 are never used
    512
    """
    families = [family for module in model.modules() if (family := family_of(module)) is not None]
    if any(family.relative_positions for family in families):
        return None
    if any(family.padded_positions for family in families):
        for name, module in model.named_modules():
            if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
                return module.num_embeddings - module.padding_idx - 1
    limit = getattr(model.config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def embedding_rows(model: Any) -> int | None:
    """How many token ids the model has embeddings for; None if it has no token embeddings."""
    try:
        return model.get_input_embeddings().weight.shape[0]
    except (AttributeError, NotImplementedError):
        return None


def output_rows(model: Any) -> int | None:
    """How many token ids the model can produce."""
    head = model.get_output_embeddings()
    return None if head is None else head.weight.shape[0]


def cache_bytes(model: Any, *, original: bool = False) -> int:
    """Bytes of keys and values that a generator's decoder keeps for every token; 0 of a model that does not generate.

    original: as it was before any head was removed.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> size = dict(hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2)
    >>> model = LlamaForCausalLM(LlamaConfig(**size, intermediate_size=8, vocab_size=8))
    >>> cache_bytes(model)  # keys and values, 3 layers, 2 heads of 8 numbers of 4 bytes
    384
    """
    if not getattr(model, "can_generate", lambda: False)():
        return 0
    each = 2 * next(model.parameters()).element_size()
    total = 0
    for site in anatomy(model).sites:
        if site.kind == "decoder":
            heads = site.original // site.group if original else len(site.kv_kept)
            total += each * max(1, heads * site.head_dim)  # a site without heads keeps one number, the cache's length
    return total


def start_token(config: Any) -> int:
    """The token that a decoder starts with."""
    for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
        if isinstance(getattr(config, name, None), int):
            return getattr(config, name)
    return 0


def without_cache(model: Any) -> dict[str, bool]:
    """The argument that stops a model from keeping keys and values that nothing will read."""
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}


def random_inputs(model: Any, batch: int, length: int, *, padding: str | None = None, seed: int = 0) -> dict:
    """A batch of random texts, images or sounds, whichever the model reads.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4))
    >>> {name: tuple(tensor.shape) for name, tensor in random_inputs(model, 2, 7).items()}
    {'input_ids': (2, 7), 'attention_mask': (2, 7)}

    length: in tokens; images and sounds have the size that the configuration says. padding: "left" or "right" pads all
        texts but the first; None leaves all of them at full length.

    A text ends with the end-of-text token, which classifiers of some families look for. An encoder-decoder that does
    not make its own decoder inputs gets some of the same length.
    """
    generator = torch.Generator().manual_seed(seed)
    config, taken = model.config, inspect.signature(model.forward).parameters
    inputs: dict[str, Tensor] = {}
    if "pixel_values" in taken:
        vision = getattr(config, "vision_config", config)
        height, width = _sides(vision.image_size)
        image = (batch, getattr(vision, "num_channels", 3), height, width)
        inputs["pixel_values"] = torch.randn(image, generator=generator)
    if "input_features" in taken:
        shape = (batch, config.num_mel_bins, 2 * config.max_source_positions)
        inputs["input_features"] = torch.randn(shape, generator=generator)
    elif "input_ids" in taken:
        inputs |= _texts(getattr(config, "text_config", config), batch, length, padding, generator)
    if "decoder_input_ids" in taken and not type(model).__name__.endswith("Classification"):
        ids = _tokens(config, (batch, length), generator)
        ids[:, 0] = start_token(config)
        inputs["decoder_input_ids"] = ids
    device = device_of(model)
    return {name: tensor.to(device) for name, tensor in inputs.items() if name in taken}


def _texts(config: Any, batch: int, length: int, padding: str | None, generator: torch.Generator) -> dict[str, Tensor]:
    ids = _tokens(config, (batch, length), generator)  # (B, T)
    mask = torch.ones_like(ids)
    pad, end = getattr(config, "pad_token_id", None), getattr(config, "eos_token_id", None)
    for row in range(batch):
        missing = (1 + row % max(1, length // 2)) if padding and row and length > 1 else 0
        empty = slice(0, missing) if padding == "left" else slice(length - missing, length)
        ids[row, empty], mask[row, empty] = pad if isinstance(pad, int) else 0, 0
        if isinstance(end, int):
            ids[row, -1 if padding == "left" else length - missing - 1] = end
    return {"input_ids": ids, "attention_mask": mask}


def _tokens(config: Any, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Ordinary tokens only: a mark in the middle of a text would change what some models read."""
    marks = {getattr(config, name, None) for name in SPECIAL}
    known = getattr(config, "vocab_size", None) or VOCABULARY
    ordinary = torch.tensor([token for token in range(min(known, VOCABULARY)) if token not in marks])
    return ordinary[torch.randint(len(ordinary), shape, generator=generator)]


def _sides(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)
