"""The plain path that all others must agree with: one mask, one full forward pass at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headcount.evaluate.outcomes import Mask
from headcount.mask import masked
from headcount.tasks import Batch, Task


@torch.inference_mode()
def evaluate_plainly(
    model: Any, task: Task, batch: Batch, mask: Mask, fill: Mapping[str, Tensor] | None = None
) -> Tensor:
    """The statistics of a batch under one mask: (B, S)"""
    with masked(model, off=mask, fill=fill):
        result = task.decode(model, batch) if task.generates else task.outputs(model, batch)
    return task.statistics(result, batch)
