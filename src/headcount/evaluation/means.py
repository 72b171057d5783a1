"""Each head's mean output over a task's data, for ablation that replaces instead of silencing."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.engine import TOKENS, batches_by_length
from headcount.intervene import capture
from headcount.structure import anatomy, device_of
from headcount.tasks import Batch, Task


def mean_contexts(model: Any, task: Task, tokens: int = TOKENS) -> dict[str, Tensor]:
    """The mean over all tokens, padding left out, of what enters each site's projection: {site: (heads, head_dim)}

    Decoders read the references, so the mean does not depend on any mask.
    """
    return means_of(context_sums(model, task, tokens))


@torch.inference_mode()
def context_sums(model: Any, task: Task, tokens: int = TOKENS) -> dict[str, np.ndarray]:
    """What these means are made of, for some of the data: sums (heads, head_dim) by site, and how many tokens, ()."""
    sums: dict[str, np.ndarray] = {}
    device = device_of(model)
    for indices in batches_by_length(task.lengths, tokens):
        batch = task.batch(indices).to(device)
        with capture(model, attention=False) as seen:
            task.outputs(model, batch)
        for site in anatomy(model).sites:
            for context in seen.contexts.calls.get(site.name, []):  # (B, T, heads, head_dim)
                real = _real_tokens(batch, site.kind, context).to(context)  # (B, T)
                total = torch.einsum("bthd,bt->hd", context, real).double().cpu().numpy()
                sums[site.name] = sums.get(site.name, 0.0) + total
                sums[f"{site.name} tokens"] = sums.get(f"{site.name} tokens", 0.0) + np.float64(real.sum().item())
    return {name: np.asarray(total) for name, total in sums.items()}


def means_of(sums: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """{site: (heads, head_dim)} from the sums of `context_sums`, of one part of the data or of several added up."""
    names = [name for name in sums if f"{name} tokens" in sums]
    return {name: torch.from_numpy(sums[name] / max(float(sums[f"{name} tokens"]), 1.0)).float() for name in names}


def _real_tokens(batch: Batch, kind: str, context: Tensor) -> Tensor:
    """1 for tokens, 0 for padding: (B, T)"""
    shape = context.shape[:2]
    mask = batch.inputs.get("attention_mask")
    if kind != "cross" and mask is not None and mask.shape == shape:
        return mask
    if kind in ("decoder", "cross") and batch.labels is not None and batch.labels.shape == shape:
        return batch.labels != -100
    return torch.ones(shape, device=context.device)
