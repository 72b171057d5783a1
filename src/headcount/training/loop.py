"""A plain training loop whose every epoch can be repeated to the last bit, and its state as safetensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from headcount.engine import batches_by_length
from headcount.errors import HeadcountError, RunConflict, first_line
from headcount.structure import device_of
from headcount.tasks import Task

Progress = Callable[[float], None]
REMEMBERED = ("step", "exp_avg", "exp_avg_sq")  # by AdamW, of each parameter


class Training:
    """AdamW with warm-up and linear decay; every epoch's randomness comes from the seed and its number alone.

    A subclass says what the `loss` is. groups: of parameters, as torch has them, each with its `lr` at its height;
    one with `"steady": True` keeps it. what: the name of all this in an error.
    """

    def __init__(
        self,
        model: Any,
        task: Task,
        groups: Sequence[dict[str, Any]],
        *,
        epochs: int,
        tokens: int,
        seed: int,
        what: str,
    ) -> None:
        self.model, self.task, self.seed, self.what = model, task, seed, what
        self.device = device_of(model)
        self.batches = batches_by_length(task.lengths, tokens)
        self.steps = epochs * len(self.batches)
        self.optimizer = torch.optim.AdamW([{"weight_decay": 0.01, **group} for group in groups])
        self.heights = [group["lr"] for group in groups]

    def loss(self, step: int, batch: Any) -> Tensor:
        """What is to be made smaller at a step, counted from 0."""
        raise NotImplementedError

    def after(self, step: int) -> None:
        """Called when a step has been made."""

    def epoch(self, number: int, progress: Progress) -> None:
        order = np.random.default_rng([self.seed, number]).permutation(len(self.batches))
        self.model.train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed * 1_000_003 + number)
            for place, index in enumerate(order):
                self._step(number * len(order) + place, self.task.batch(self.batches[index]).to(self.device))
                progress((place + 1) / len(order))
        self.model.eval()

    def _step(self, step: int, batch: Any) -> None:
        warm = max(1.0, 0.1 * self.steps)
        share = max(0.0, min((step + 1) / warm, (self.steps - step) / max(1.0, self.steps - warm)))
        for group, height in zip(self.optimizer.param_groups, self.heights, strict=True):
            group["lr"] = height if group.get("steady") else height * share
        loss = self.loss(step, batch)
        if not math.isfinite(float(loss.detach())):
            raise HeadcountError(f"the loss is not finite at step {step + 1} of {self.what}; try a smaller --lr")
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.after(step)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def set_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Bring a model's weights to what they were."""
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            _refuse_misfit(name, weights.get(name), (tensor.shape,))
            tensor.copy_(weights[name])


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What an optimizer remembers, each by its parameter's number and name."""
    return {
        f"{number}.{name}": torch.as_tensor(value).detach().clone()
        for number, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
    }


def set_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Bring an optimizer to what it remembered."""
    content = optimizer.state_dict()
    shapes = [parameter.shape for group in optimizer.param_groups for parameter in group["params"]]
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        known = name in REMEMBERED and number.isdecimal() and int(number) < len(shapes)
        _refuse_misfit(key, value, (shapes[int(number)], torch.Size()) if known else ())
        content["state"].setdefault(int(number), {})[name] = value
    for number, state in content["state"].items():
        for name in REMEMBERED:
            _refuse_misfit(f"{number}.{name}", state.get(name))
    optimizer.load_state_dict(content)


def _refuse_misfit(name: str, tensor: Tensor | None, shapes: Sequence[torch.Size] | None = None) -> None:
    """What was kept must fit what it is put into."""
    if tensor is None or (shapes is not None and tensor.shape not in shapes):
        found = "missing" if tensor is None else f"of shape {list(tensor.shape)}"
        raise RunConflict(f"what was kept of the training does not fit the model: {name} is {found}; begin a new run")


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Whole or not at all; tensors that share memory (tied embeddings) are written once each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file({name: tensor.contiguous().clone() for name, tensor in tensors.items()}, partial)
    partial.replace(path)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """What `write_tensors` has written."""
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, OverflowError) as error:
        raise RunConflict(f"{path} cannot be read: {first_line(error)}; begin a new run") from None


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those whose name begins with the prefix, without it.

    >>> sorted(under("a.", {"a.x": torch.ones(1), "b.x": torch.ones(1)}))
    ['x']
    """
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
