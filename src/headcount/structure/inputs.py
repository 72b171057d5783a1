"""Random inputs that a model can read, to compare exports on and to measure speed with."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from headcount.structure.model_facts import start_token
from headcount.structure.transformers_internals import device_of

SPECIAL = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
VOCABULARY = 1000  # for a model that does not say how many tokens it knows


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
