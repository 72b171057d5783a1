"""What a training keeps after each epoch, so that the same call resumes it and ends in the same bits.

`NAME.json` holds the caller's small state and names the file with the tensors, `NAME-N.safetensors`: the model's
weights, what the optimizer remembers, and what else the caller needs. The tensors are written first and the JSON last,
each whole or not at all. Whenever the process ends, the JSON names a complete file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from headcount.errors import RunConflict, first_line
from headcount.files import read_object, write_whole

ANEW = "remove that directory, or choose another one"
MODEL, OPTIMIZER, COPY, OTHER = "model.", "optimizer.", "copy.", "other."  # what the names of tensors begin with
REMEMBERED = ("step", "exp_avg", "exp_avg_sq")  # by AdamW, of each parameter

Parsed = TypeVar("Parsed")


class Restored(NamedTuple):
    """What was kept beside the model and the optimizer: single tensors, and copies of all weights."""

    tensors: dict[str, Tensor]
    copies: dict[str, dict[str, Tensor]]


class Checkpointer:
    """The state of a training after its last finished epoch.

    >>> import tempfile
    >>> layer, place = nn.Linear(2, 1), tempfile.mkdtemp()
    >>> Checkpointer(place).keep({"epoch": 3}, layer)
    >>> before = weights_of(layer)
    >>> with torch.no_grad():
    ...     _ = layer.weight.fill_(0)
    >>> found = Checkpointer(place)
    >>> found.read(lambda state: int(state["epoch"]))
    3
    >>> _ = found.restore(layer)
    >>> bool((layer.weight == before["weight"]).all())
    True

    directory: where it is kept; None keeps nothing and finds nothing.
    name: of the files. signature: what the training depends on; the checkpoint of another one is refused.
    """

    def __init__(
        self, directory: str | Path | None, name: str = "training", signature: Mapping[str, Any] | None = None
    ) -> None:
        self.directory = None if directory is None else Path(directory)
        self.name = name
        self.signature = json.loads(json.dumps(signature, default=str))
        self._number = 0  # of the file of tensors that the JSON names
        self._copies: list[str] = []

    def read(self, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed | None:
        """What `parse` makes of the state that was kept; None if there is none.

        An error of `parse` says that the file is damaged.
        """
        content = None if self.directory is None else read_object(self._json)
        if content is None:
            return None
        if content.get("signature") != self.signature:
            raise RunConflict(f"{self.directory} holds the training of a different run", advice=ANEW)
        try:
            found = re.fullmatch(rf"{re.escape(self.name)}-([0-9]{{1,9}})\.safetensors", content["file"])
            if found is None:  # a file in the same directory and nowhere else
                raise ValueError(f"file {content['file']!r}")
            copies = [str(name) for name in content["copies"]]
            parsed = parse(content)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise RunConflict(f"{self._json} is damaged ({error!r})", advice=ANEW) from None
        self._number, self._copies = int(found[1]), copies
        return parsed

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Restored:
        """Bring the model, and the optimizer if one is given, to where they were; `read` must have found something."""
        assert self.directory is not None
        tensors = _read_tensors(self.directory / self._file(self._number))
        weights = _under(MODEL, tensors)
        set_weights(model, weights)
        if optimizer is not None:
            set_optimizer(optimizer, _under(OPTIMIZER, tensors))
        copies = {}
        for name in self._copies:
            copies[name] = _under(f"{COPY}{name}.", tensors) or weights
            _refuse_misfits(model, copies[name])
        return Restored(_under(OTHER, tensors), copies)

    def keep(
        self,
        state: Mapping[str, Any],
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        tensors: Mapping[str, Tensor] | None = None,
        copies: Mapping[str, Mapping[str, Tensor]] | None = None,
    ) -> None:
        """Replace what was kept before.

        state: plain JSON. tensors: single ones, by name. copies: of all weights, by name, such as the best so far;
        one that equals the model's own weights is not written twice.
        """
        if self.directory is None:
            return
        weights, copies = model.state_dict(), copies or {}
        content = {f"{MODEL}{name}": tensor for name, tensor in weights.items()}
        if optimizer is not None:
            content |= {f"{OPTIMIZER}{name}": tensor for name, tensor in optimizer_tensors(optimizer).items()}
        content |= {f"{OTHER}{name}": tensor for name, tensor in (tensors or {}).items()}
        for name, copy in copies.items():
            if not all(torch.equal(copy[key].to(tensor.device), tensor) for key, tensor in weights.items()):
                content |= {f"{COPY}{name}.{key}": tensor for key, tensor in copy.items()}
        self._number += 1
        file = self._file(self._number)
        self.directory.mkdir(parents=True, exist_ok=True)
        # Cloned: safetensors refuses tensors that share memory, as tied embeddings do.
        whole = save({name: tensor.detach().contiguous().clone() for name, tensor in content.items()})
        write_whole(self.directory / file, whole)
        described = {**state, "signature": self.signature, "file": file, "copies": list(copies)}
        write_whole(self._json, json.dumps(described, indent=2).encode())
        for old in self.directory.glob(f"{self.name}-*.safetensors"):
            if old.name != file:
                old.unlink()

    @property
    def _json(self) -> Path:
        assert self.directory is not None
        return self.directory / f"{self.name}.json"

    def _file(self, number: int) -> str:
        return f"{self.name}-{number}.safetensors"


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def set_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Restore a model's weights."""
    _refuse_misfits(model, weights)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(weights[name])


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state of an optimizer, by the number of the parameter and the name of the value."""
    return {
        f"{number}.{name}": torch.as_tensor(value)
        for number, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
    }


def set_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the state of an optimizer."""
    content = optimizer.state_dict()
    shapes = [parameter.shape for group in optimizer.param_groups for parameter in group["params"]]
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        known = name in REMEMBERED and number.isdecimal() and int(number) < len(shapes)
        refuse_misfit(key, value, (shapes[int(number)], torch.Size()) if known else ())
        content["state"].setdefault(int(number), {})[name] = value
    for number, state in content["state"].items():
        for name in REMEMBERED:
            refuse_misfit(f"{number}.{name}", state.get(name))
    optimizer.load_state_dict(content)


def refuse_misfit(name: str, tensor: Tensor | None, shapes: Sequence[torch.Size] | None = None) -> None:
    """Refuse a tensor that is missing, or of none of these shapes, by its name."""
    if tensor is None or (shapes is not None and tensor.shape not in shapes):
        found = "missing" if tensor is None else f"of shape {list(tensor.shape)}"
        raise RunConflict(f"the checkpoint does not fit this training: {name} is {found}", advice=ANEW)


def _refuse_misfits(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, tensor in model.state_dict().items():
        refuse_misfit(name, weights.get(name), (tensor.shape,))


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, OverflowError) as error:
        raise RunConflict(f"{path} cannot be read ({first_line(error)})", advice=ANEW) from None


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those whose name begins with the prefix, without it.

    >>> sorted(_under("a.", {"a.x": torch.ones(1), "b.x": torch.ones(1)}))
    ['x']
    """
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
