"""Each head's mean output over a task's data, for ablation that replaces instead of silencing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headcount.anatomy import anatomy
from headcount.capture import capture
from headcount.evaluate.batches import TOKENS, batches_by_length
from headcount.tasks import Batch, Task


@torch.inference_mode()
def mean_contexts(model: Any, task: Task, tokens: int = TOKENS) -> dict[str, Tensor]:
    """The mean over all tokens, padding left out, of what enters each site's projection: {site: (heads, head_dim)}

    Decoders read the references, so the mean does not depend on any mask.
    """
    sums: dict[str, Tensor] = {}
    counts: dict[str, float] = {}
    device = next(model.parameters()).device
    for indices in batches_by_length(task.lengths, tokens):
        batch = task.batch(indices).to(device)
        with capture(model, attention=False) as seen:
            task.outputs(model, batch)
        for site in anatomy(model).sites:
            for context in seen.contexts.calls.get(site.name, []):  # (B, T, heads, head_dim)
                real = _real_tokens(batch, site.kind, context).to(context)  # (B, T)
                total = torch.einsum("bthd,bt->hd", context, real).double()
                sums[site.name] = sums.get(site.name, 0) + total
                counts[site.name] = counts.get(site.name, 0.0) + float(real.sum())
    return {name: (total / max(counts[name], 1.0)).float() for name, total in sums.items()}


def _real_tokens(batch: Batch, kind: str, context: Tensor) -> Tensor:
    """1 for tokens, 0 for padding: (B, T)"""
    shape = context.shape[:2]
    mask = batch.inputs.get("attention_mask")
    if kind != "cross" and mask is not None and mask.shape == shape:
        return mask
    if kind in ("decoder", "cross") and batch.labels is not None and batch.labels.shape == shape:
        return batch.labels != -100
    return torch.ones(shape, device=context.device)
