"""What is timed: a forward pass, or a generator's prefill and decoding, in PyTorch and in onnxruntime alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.errors import HeadcountError
from headcount.export import OnnxModel
from headcount.structure import device_of, start_token

Inputs = dict[str, Tensor]
State = Any  # what decoding continues from


class TorchRunner:
    """A model in PyTorch, optionally compiled."""

    def __init__(self, model: Any, compile: bool = False) -> None:
        self.model = model
        self.generates = bool(model.can_generate())
        self.call = torch.compile(model) if compile else model
        self.device = device_of(model)

    def forward(self, inputs: Inputs) -> Any:
        """One forward pass, without a cache."""
        with torch.inference_mode():
            return self.call(**inputs)

    def prefill(self, inputs: Inputs) -> State:
        """Read the prompt, or let the encoder read the source; the decoder's first step makes its first token."""
        with torch.inference_mode():
            if not self.model.config.is_encoder_decoder:
                output = self.call(**inputs, use_cache=True)
                return output.past_key_values, output.logits[:, -1:].argmax(-1), {}
            source = {name: tensor for name, tensor in inputs.items() if name != "decoder_input_ids"}
            start = torch.full(
                (len(inputs[self.model.main_input_name]), 1), start_token(self.model.config), device=self.device
            )
            output = self.call(**source, decoder_input_ids=start, use_cache=True)
            known: dict[str, Any] = {"encoder_outputs": (output.encoder_last_hidden_state,)}
            if "attention_mask" in source:
                known["attention_mask"] = source["attention_mask"]
            return output.past_key_values, output.logits[:, -1:].argmax(-1), known

    def decode(self, state: State, tokens: int) -> State:
        """Decode this many tokens greedily; an end-of-sequence token does not stop it."""
        cache, ids, known = state
        name = "decoder_input_ids" if known else "input_ids"
        with torch.inference_mode():
            for _ in range(tokens):
                output = self.call(**{name: ids}, past_key_values=cache, use_cache=True, **known)
                cache, ids = output.past_key_values, output.logits[:, -1:].argmax(-1)
        return cache, ids, known

    def cache_bytes(self, state: State) -> int:
        """Bytes of the keys and values that the state holds."""
        cache = state[0]
        both = hasattr(cache, "self_attention_cache")
        parts = [cache.self_attention_cache, cache.cross_attention_cache] if both else [cache]
        layers = [layer for part in parts for layer in part.layers]
        tensors = [tensor for layer in layers for tensor in (layer.keys, layer.values) if tensor is not None]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def sync(self) -> None:
        """Wait until the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()


class OnnxRunner:
    """An export in onnxruntime, on the CPU."""

    def __init__(self, file: str | Path, threads: int | None) -> None:
        self.model = OnnxModel(file, threads)
        self.generates = self.model.generates

    def forward(self, inputs: Inputs) -> Any:
        return self.model.forward(_numpy(inputs))

    def prefill(self, inputs: Inputs) -> State:
        arrays = _numpy(inputs)
        ids = arrays["input_ids"]
        if self.model.decoder is not None:
            ids = arrays.pop("decoder_input_ids")[:, :1]
        logits, state = self.model.step(self.model.begin(arrays), ids)
        return state, logits[:, -1:].argmax(-1)

    def decode(self, state: State, tokens: int) -> State:
        arrays, ids = state
        for _ in range(tokens):
            logits, arrays = self.model.step(arrays, ids)
            ids = logits[:, -1:].argmax(-1)
        return arrays, ids

    def cache_bytes(self, state: State) -> int:
        return sum(array.nbytes for name, array in state[0].items() if name.startswith(("past.", "cross.")))

    def sync(self) -> None:
        """Nothing to wait for: onnxruntime returns when it has finished."""


Runner = TorchRunner | OnnxRunner


def runner_of(model: Any, threads: int | None, compile: bool) -> Runner:
    """A runner for a model, or for the file of an export."""
    if isinstance(model, str | Path):
        if Path(model).suffix != ".onnx":
            raise HeadcountError(f"{model} is not an .onnx file", advice="load a model first, with headcount.load")
        return OnnxRunner(model, threads)
    return TorchRunner(model, compile)


def decoding(runner: Runner, inputs: Inputs, tokens: int, clock: Callable[[], float]) -> Callable[[], float]:
    """A run that prefills again and returns the seconds of the decoding alone."""

    def run() -> float:
        state = runner.prefill(inputs)
        runner.sync()
        start = clock()
        runner.decode(state, tokens)
        runner.sync()
        return clock() - start

    return run


def _numpy(inputs: Inputs) -> dict[str, np.ndarray]:
    return {name: tensor.cpu().numpy() for name, tensor in inputs.items()}
