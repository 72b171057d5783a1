"""How much arithmetic a model does: the limit of what any pruning can gain, whatever the machine.

Matrix products, convolutions and attention count, two operations per multiply-add; what is done element by element
(normalisation, activation, softmax) does not, as is usual.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headcount.export import part_path
from headcount.structure import TorchDispatchMode, device_of, storage_key, tree_leaves


def count_flops(run: Callable[[], Any]) -> int:
    """The floating-point operations of what `run` does.

    >>> layer = torch.nn.Linear(8, 4)
    >>> count_flops(lambda: layer(torch.ones(10, 8)))  # 10 rows, 8 x 4 multiply-adds each
    640

    Counted as operators are called, so that every kernel is seen; PyTorch's own counter passes over attention on CPUs.
    """
    counter = _Counter()
    with torch.no_grad(), counter:
        run()
    return counter.flops


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name not in COSTS and not _is_attention(name) and func is not torch.ops.prim.device.default:
            with self:  # an operator made of others is counted by them
                taken_apart = func.decompose(*args, **kwargs)
            if taken_apart is not NotImplemented:
                return taken_apart
        output = func(*args, **kwargs)
        if _is_attention(name):
            self.flops += _attention(*args[:3])
        elif name in COSTS:
            self.flops += COSTS[name](output, *args)
        return output


def _is_attention(name: str) -> bool:
    return "attention" in name and ("dot_product" in name or name.endswith("attention_forward"))


def _attention(query: Tensor, key: Tensor, value: Tensor) -> int:
    """Scores and weighted sum: 2 B H T S d each. Causal attention counts in full, as in PyTorch's counter."""
    batch, heads, length, size = query.shape
    return 2 * batch * heads * length * key.shape[-2] * (size + value.shape[-1])


def _mm(output: Tensor, left: Tensor, right: Tensor) -> int:
    return 2 * output.numel() * left.shape[-1]


def _addmm(output: Tensor, added: Tensor, left: Tensor, right: Tensor) -> int:
    return 2 * output.numel() * left.shape[-1]


def _convolution(output: Tensor, image: Tensor, weight: Tensor, *rest: Any) -> int:
    return 2 * output.numel() * math.prod(weight.shape[1:])


COSTS: dict[str, Callable[..., int]] = {
    "mm": _mm,
    "bmm": _mm,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "convolution": _convolution,
    "_convolution": _convolution,
    "mkldnn_convolution": _convolution,
}


@dataclass(frozen=True)
class Size:
    """parameters, disk and memory of one model.

    disk: bytes of the weights as `save` writes them, or of an export's files.
    memory: bytes of the weights and, at its peak, of everything that one pass over the largest batch holds beside
        them; None for an export, whose memory onnxruntime does not tell.
    """

    parameters: int | None
    disk: int
    memory: int | None


def size_of(model: Any, run: Callable[[], object]) -> Size:
    """Measure a model, and the memory of what `run` does with it."""
    if isinstance(model, str | Path):
        return Size(None, _export_bytes(Path(model)), None)
    weights = {tensor.data_ptr() or id(tensor): tensor for tensor in model.state_dict().values()}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    disk = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    return Size(parameters, disk, disk + peak_memory(run, device_of(model)))


def peak_memory(run: Callable[[], object], device: torch.device | None = None) -> int:
    """The most bytes of tensors that `run` holds at a time, beside those that were there before.

    >>> peak_memory(lambda: torch.ones(1000).double())  # 4 bytes of each and 8 of each
    12000
    """
    if device is not None and device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    held = _Held()
    with held:
        kept = run()
    del kept
    return held.most


class _Held(TorchDispatchMode):
    """Counts the bytes of every storage that operators make, from its first tensor until its last one is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.storages: dict[int, list[int]] = {}  # bytes, and how many tensors look at them

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {storage_key(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}
        output = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor):
                self._see(tensor, given)
        return output

    def _see(self, tensor: Tensor, given: set[int]) -> None:
        storage, key = tensor.untyped_storage(), storage_key(tensor)
        if key not in self.storages:
            if key in given:  # it was there before
                return
            self.storages[key] = [storage.nbytes(), 0]
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
        self.storages[key][1] += 1
        weakref.finalize(tensor, self._forget, key)

    def _forget(self, key: int) -> None:
        entry = self.storages[key]
        entry[1] -= 1
        if entry[1] == 0:
            self.now -= entry[0]
            del self.storages[key]


def _export_bytes(file: Path) -> int:
    graphs = [file] if file.is_file() else [part_path(file, part) for part in ("encoder", "decoder")]
    files = [part for graph in graphs for part in (graph, graph.with_name(f"{graph.name}.data"))]
    return sum(part.stat().st_size for part in files if part.is_file())
