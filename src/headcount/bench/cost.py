"""What a model costs, whatever the machine: FLOPs (the limit of what any pruning can gain), memory and disk space.

Matrix products, convolutions and attention count, two operations per multiply-add; what is done element by element
(normalisation, activation, softmax) does not, as is usual.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headcount.export import part_path
from headcount.structure import (
    AttentionSite,
    Site,
    TorchDispatchMode,
    device_of,
    flop_counter,
    storage_key,
    tree_leaves,
)


def count_flops(run: Callable[[], Any]) -> int:
    """The floating-point operations of what `run` does.

    >>> layer = torch.nn.Linear(8, 4)
    >>> count_flops(lambda: layer(torch.ones(10, 8)))  # 10 rows, 8 x 4 multiply-adds each
    640

    Counted by PyTorch as operators are called, with a formula of ours for attention on CPUs.
    """
    counter = flop_counter(_attention)
    with torch.no_grad(), counter:
        run()
    return int(counter.get_total_flops())


def unit_flops(site: Site, length: int) -> float:
    """The floating-point operations that one head or neuron of a site costs at each position of a text.

    >>> from headcount.structure import anatomy
    >>> from transformers import BertConfig, BertModel
    >>> size = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64)
    >>> attention, feed_forward = anatomy(BertModel(BertConfig(**size)), ["heads", "neurons"]).sites
    >>> unit_flops(attention, length=10)  # 4 projections of 32 x 8 weights; scores and weighted sum over 10 positions
    2368.0
    >>> unit_flops(feed_forward, length=10)  # 2 projections of 32 weights
    128.0

    length: of the text, which is what a head attends to. Query heads that share keys and values pay for them in equal
    parts. A unit that several layers run (ALBERT) costs as much as in all of them together. Scores of relative
    positions (DeBERTa) do not follow from the length, and are left out.
    """
    return site_flops(site, site.kept, length) / len(site.kept) if site.kept else 0.0


def site_flops(site: Site, kept: Sequence[int], length: int) -> float:
    """The floating-point operations of a site at each position of a text, if it keeps these units.

    A key-value head stays, and costs as much as before, until the last of its query heads is gone.

    kept: by original index. length: as in `unit_flops`.
    """
    if not kept:
        return 0.0
    weights = site.output.weight.numel() / len(site.kept) * len(kept)
    for part, module in site.inputs:
        weights += module.weight.numel() * len(site.rows(part, kept)) / len(site.rows(part, site.kept))
    attention = 4 * length * site.width * len(kept) if isinstance(site, AttentionSite) else 0
    return (2 * weights + attention) * (1 + len(site.also_layers))


def _attention(query: torch.Size, key: torch.Size, value: torch.Size, *rest: Any, **settings: Any) -> int:
    """Scores and weighted sum, 2 B H T S d each; causal attention counts in full, as in PyTorch's own formulas.

    query, key, value: the shapes (B, H, T, d), (B, H, S, d) and (B, H, S, d).
    """
    batch, heads, length, size = query
    return 2 * batch * heads * length * key[-2] * (size + value[-1])


@dataclass(frozen=True)
class ModelSize:
    """Parameters, disk space and memory of one model.

    disk: bytes of the weights as `save` writes them, or of an export's files.
    memory: bytes of the weights, and of everything else that one pass over the largest batch holds at its peak;
        None for an export: onnxruntime does not say.
    """

    parameters: int | None
    disk: int
    memory: int | None


def size_of(model: Any, run: Callable[[], object]) -> ModelSize:
    """Measure a model, and the memory of what `run` does with it."""
    if isinstance(model, str | Path):
        return ModelSize(None, _export_bytes(Path(model)), None)
    weights = {tensor.data_ptr() or id(tensor): tensor for tensor in model.state_dict().values()}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    disk = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
    return ModelSize(parameters, disk, disk + peak_memory(run, device_of(model)))


def peak_memory(run: Callable[[], object], device: torch.device | None = None) -> int:
    """The largest number of bytes that tensors made by `run` hold at any time.

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
            if key in given:  # an existing one
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
