"""Where a number comes from: the versions and the exact model behind it."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import transformers
from torch import nn

import headcount

SAMPLED = 4096  # values of each tensor that enter the fingerprint


def versions() -> dict[str, str]:
    """The versions that a result depends on.

    >>> sorted(versions())
    ['headcount', 'torch', 'transformers']
    """
    return {
        "headcount": headcount.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def model_signature(model: nn.Module) -> dict[str, Any]:
    """Name, class and fingerprint of a model."""
    config = getattr(model, "config", None)
    return {
        "name": getattr(config, "_name_or_path", "") or type(model).__name__,
        "class": type(model).__name__,
        "fingerprint": fingerprint(model),
    }


@torch.no_grad()
def fingerprint(model: nn.Module) -> str:
    """A short hash of a model's weights: every tensor's name and shape, and values spread evenly over it."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        if not tensor.is_meta and tensor.numel():
            step = max(1, tensor.numel() // SAMPLED)
            digest.update(tensor.reshape(-1)[::step].contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
