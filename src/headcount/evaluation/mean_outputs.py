"""Each head's or neuron's mean output over a task's data, for ablation that puts it in their place instead of zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.engine import TOKENS, Arrays, Progress, batches_by_length, is_finite, over_shards
from headcount.heads import FEED_FORWARD
from headcount.intervene import capture
from headcount.runs import RunDirectory
from headcount.structure import anatomy, device_of
from headcount.tasks import Batch, Task

COUNT = " tokens"  # after a site's name: over how many tokens its outputs are summed


def mean_contexts(
    model: Any,
    task: Task,
    tokens: int = TOKENS,
    *,
    units: tuple[str, ...] = ("heads",),
    directory: RunDirectory | None = None,
    name: str = "means",
    signature: str = "",
) -> dict[str, Tensor]:
    """The mean over all tokens, padding left out, of what enters each site's projection: {site: (heads, head_dim)}

    Decoders read the references, so the mean does not depend on any mask.

    tokens: per batch, padding included. units: at which sites, as of `anatomy`. directory, name, signature: as of
        `over_shards`.
    """
    work = ContextSums(tokens, units)
    sums = over_shards(work, model, task, directory=directory, name=name, signature=signature)
    sites = [site for site in sums if f"{site}{COUNT}" in sums]
    return {site: torch.from_numpy(sums[site] / max(float(sums[f"{site}{COUNT}"]), 1.0)).float() for site in sites}


@dataclass(frozen=True)
class ContextSums:
    """Work: for each site the sum of the heads' outputs, (heads, head_dim), and the number of tokens, ()."""

    tokens: int
    units: tuple[str, ...] = ("heads",)

    def summed(self, name: str) -> bool:
        return True

    def fits(self, arrays: Arrays, count: int) -> bool:
        return all(is_finite(array) for array in arrays.values())

    @torch.inference_mode()
    def __call__(self, model: Any, examples: Any, progress: Progress | None = None) -> Arrays:
        sums: dict[str, Any] = {}
        sites, device = anatomy(model, self.units).sites, device_of(model)
        for indices in batches_by_length(examples.lengths, self.tokens):
            batch = examples.batch(indices).to(device)
            with capture(model, attention=False, units=self.units) as seen:
                examples.outputs(model, batch)
            for site in sites:
                for context in seen.contexts.calls.get(site.name, []):  # (B, T, heads, head_dim)
                    real = _real_tokens(batch, site.kind, context).to(context)  # (B, T)
                    total = torch.einsum("bthd,bt->hd", context, real).double().cpu().numpy()
                    sums[site.name] = sums.get(site.name, 0.0) + total
                    count = f"{site.name}{COUNT}"
                    sums[count] = sums.get(count, 0.0) + np.float64(real.sum().item())
        return {name: np.asarray(total) for name, total in sums.items()}


def _real_tokens(batch: Batch, kind: str, context: Tensor) -> Tensor:
    """1 for tokens, 0 for padding: (B, T)"""
    shape, kind = context.shape[:2], kind.removesuffix(FEED_FORWARD)
    mask = batch.inputs.get("attention_mask")
    if kind != "cross" and mask is not None and mask.shape == shape:
        return mask
    if kind in ("decoder", "cross") and batch.labels is not None and batch.labels.shape == shape:
        return batch.labels != -100
    return torch.ones(shape, device=context.device)
