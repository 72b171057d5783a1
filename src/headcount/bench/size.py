"""What a model takes: parameters, bytes on disk, and the most memory that it holds while it runs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from headcount.anatomy import device_of
from headcount.surgery.onnx_run import part_path


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
        given = {_storage(tensor)._cdata for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)}
        output = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor):
                self._see(tensor, given)
        return output

    def _see(self, tensor: Tensor, given: set[int]) -> None:
        storage = _storage(tensor)
        key = storage._cdata
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


def _storage(tensor: Tensor) -> Any:
    return tensor.untyped_storage()


def _export_bytes(file: Path) -> int:
    graphs = [file] if file.is_file() else [part_path(file, part) for part in ("encoder", "decoder")]
    files = [part for graph in graphs for part in (graph, graph.with_name(f"{graph.name}.data"))]
    return sum(part.stat().st_size for part in files if part.is_file())
