"""Models on their way to workers: the structure without weights, and each tensor on its own, in a store.

A store that gives arrays back without copying them, as Ray's does, lets all workers of a machine read the same weights.
"""

from __future__ import annotations

import copy
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headcount.structure import ALIGNMENT, put_tensor


@dataclass(frozen=True)
class StoredModel:
    """References to a model's structure and to its tensors, by name."""

    structure: Any
    tensors: dict[str, tuple[Any, torch.dtype]]


@torch.no_grad()
def store_model(model: nn.Module, put: Callable[[Any], Any], get: Callable[[Any], Any] | None = None) -> StoredModel:
    """Put a model into a store, tensor by tensor; with `get`, its own tensors become those of the store.

    put: takes an object, gives a reference to it. get: takes a reference, gives the object.
    """
    tensors: dict[str, tuple[Any, torch.dtype]] = {}
    memo: dict[int, Any] = {}
    for name, tensor in _tensors(model):
        if id(tensor) in memo:
            continue
        reference = put(_bytes(tensor))
        if get is not None and tensor.device.type == "cpu":
            tensor.data = _tensor(get(reference), tensor.dtype).view(tensor.shape)
        tensors[name] = (reference, tensor.dtype)
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return StoredModel(put(copy.deepcopy(model, memo)), tensors)


def fetch_model(stored: StoredModel, get: Callable[[Any], Any]) -> Any:
    """The model, with its weights as the store gives them."""
    model = get(stored.structure)
    fetched: dict[int, Tensor] = {}  # tied weights stay tied
    for name, tensor in list(_tensors(model)):
        if id(tensor) not in fetched:
            reference, dtype = stored.tensors[name]
            data = _tensor(get(reference), dtype).view(tensor.shape)
            is_parameter = isinstance(tensor, nn.Parameter)
            fetched[id(tensor)] = nn.Parameter(data, tensor.requires_grad) if is_parameter else data
            fetched[-id(tensor)] = tensor  # kept alive, so that no other gets its id
        put_tensor(model, name, fetched[id(tensor)])
    return model


def checksum(model: nn.Module) -> int:
    """A hash of a model and every bit of its weights.

    >>> model = nn.Linear(2, 2)
    >>> before = checksum(model)
    >>> model.bias.data[0] += 1
    >>> checksum(model) == before
    False
    """
    total = id(model)
    for name, tensor in _tensors(model):
        total = hash((total, name, zlib.crc32(_bytes(tensor))))
    return total


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()


def _tensor(array: Any, dtype: torch.dtype) -> Tensor:
    """Without a copy, if it is aligned as torch needs it."""
    if not array.size:
        return torch.empty(0, dtype=dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it must not be written to: nobody does
        tensor = torch.frombuffer(array, dtype=dtype)
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor
