"""An export must compute what the model computes: compared in onnxruntime, on random and on given inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.anatomy import device_of
from headcount.errors import HeadcountError, first_line
from headcount.surgery.dummy import random_inputs
from headcount.surgery.onnx_graphs import positions
from headcount.surgery.onnx_run import OnnxModel

TOLERANCE = 1e-4  # absolute, and relative where numbers are larger than one
SHAPES = ((1, 5), (3, 9), (2, 16))  # batch, length: none of them is what graphs are traced with
AHEAD = 3  # tokens that are fed at once before the cache is used token by token


def check_parity(model: Any, file: Path, given: Iterable[Mapping[str, Tensor]] = ()) -> float:
    """The largest difference between the model and its export; more than `TOLERANCE` is refused."""
    export = OnnxModel(file)
    worst = 0.0
    for what, inputs in _trials(model, given):
        try:
            off = _generated_off(model, export, inputs) if model.can_generate() else _forward_off(model, export, inputs)
        except (HeadcountError, KeyboardInterrupt):
            raise
        except Exception as error:  # onnxruntime raises errors of its own kinds
            raise HeadcountError(f"not exported: the export does not run on {what}: {first_line(error)}") from error
        if not off <= TOLERANCE:
            raise HeadcountError(
                f"not exported: the export and the model differ by {off:.2g} on {what}, and {TOLERANCE:g} is allowed"
            )
        worst = max(worst, off)
    return worst


def _trials(model: Any, given: Iterable[Mapping[str, Tensor]]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    side = "left" if model.can_generate() and not model.config.is_encoder_decoder else "right"
    limit = getattr(getattr(model.config, "text_config", model.config), "max_position_embeddings", None) or 512
    for batch, length in SHAPES:
        length = min(length, max(1, limit // 2))
        yield f"random inputs of {batch} x {length}", random_inputs(model, batch, length, padding=side)
    for number, inputs in enumerate(given):
        device = device_of(model)
        named = {name: tensor.to(device) for name, tensor in inputs.items()}
        if "input_ids" in named:  # a graph has no default: without a mask, everything is read
            named.setdefault("attention_mask", torch.ones_like(named["input_ids"]))
        yield f"your inputs {number}", named


@torch.no_grad()
def _forward_off(model: Any, export: OnnxModel, inputs: dict[str, Tensor]) -> float:
    expected = model(**inputs, return_dict=True)
    found = export.forward({name: tensor.cpu().numpy() for name, tensor in inputs.items()})
    mask = inputs.get("attention_mask")
    return max(_off(value, expected[name].cpu().numpy(), mask) for name, value in found.items())


@torch.no_grad()
def _generated_off(model: Any, export: OnnxModel, inputs: dict[str, Tensor]) -> float:
    """Logits of one pass without a cache, against the export's: some tokens at once, then one by one with its cache."""
    inputs, mask = dict(inputs), inputs.get("attention_mask")
    if model.config.is_encoder_decoder:
        if "decoder_input_ids" not in inputs:
            batch, length = len(inputs[model.main_input_name]), 2 * AHEAD
            inputs["decoder_input_ids"] = random_inputs(model, batch, length)["decoder_input_ids"]
        ids, mask = inputs["decoder_input_ids"], None
        expected = model(**inputs, use_cache=False).logits
        inputs.pop("decoder_input_ids")
    else:
        ids = inputs["input_ids"]
        assert mask is not None
        expected = model(**inputs, use_cache=False, **positions(model, mask, ids.shape[1])).logits
    numpy = {name: tensor.cpu().numpy() for name, tensor in inputs.items()}
    tokens = ids.cpu().numpy()
    state, logits = export.begin(numpy), []
    for start, stop in [(0, AHEAD), *((i, i + 1) for i in range(AHEAD, tokens.shape[1]))]:
        if export.decoder is None:
            state["attention_mask"] = numpy["attention_mask"][:, :stop]
        step, state = export.step(state, tokens[:, start:stop])
        logits.append(step)
    return _off(np.concatenate(logits, axis=1), expected.cpu().numpy(), mask)


def _off(found: np.ndarray, expected: np.ndarray, mask: Tensor | None) -> float:
    """The largest difference, at tokens that are no padding."""
    if found.shape != expected.shape:
        return float("inf")
    off = np.abs(found - expected) / np.maximum(np.abs(expected), 1)  # (B, T, …) or any other shape
    if mask is not None and off.shape[:2] == tuple(mask.shape):
        off = off[mask.cpu().numpy().astype(bool)]
    return float(off.max(initial=0.0)) if np.isfinite(off).all() else float("inf")
