"""What a model takes: parameters, bytes on disk, and the most memory that it holds while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

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
    return Size(parameters, disk, disk + peak_memory(run, next(model.parameters()).device))


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
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        kept = run()
    del kept
    events: Any = recorded.profiler.kineto_results.events()  # type: ignore[union-attr]
    held = most = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def _export_bytes(file: Path) -> int:
    graphs = [file] if file.is_file() else [part_path(file, part) for part in ("encoder", "decoder")]
    files = [part for graph in graphs for part in (graph, graph.with_name(f"{graph.name}.data"))]
    return sum(part.stat().st_size for part in files if part.is_file())
