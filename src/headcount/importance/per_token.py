"""The gradient of a loss with respect to each head's mask at each token: what the M19 authors' own code starts from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from headcount.anatomy import AttentionSite, anatomy


def token_gradients(model: nn.Module, loss: Callable[[], Tensor]) -> Tensor:
    """dL/dxi of every example, token and head, (B, T, heads); shorter sites are padded with zeros to the longest.

    loss: runs the model once, with parameters frozen, and returns the loss summed over the examples.
    """
    leaves: dict[str, list[Tensor]] = {}
    sites = [site for site in anatomy(model).sites if site.kept]
    with ExitStack() as stack:
        for site in sites:
            stack.callback(site.output.register_forward_pre_hook(_with_leaf(site, leaves)).remove)
        total = loss()
    flat = [leaf for site in sites for leaf in leaves[site.name]]
    gradients = iter(torch.autograd.grad(total, flat))
    # ALBERT runs one site several times: the head's share is what all runs together contribute at a token
    by_site = [sum((next(gradients) for _ in leaves[site.name]), torch.tensor(0.0)) for site in sites]
    longest = max(part.shape[1] for part in by_site)
    padded = [nn.functional.pad(part, (0, 0, 0, longest - part.shape[1])) for part in by_site]
    return torch.cat(padded, dim=-1)


def _with_leaf(site: AttentionSite, leaves: dict[str, list[Tensor]]) -> Any:
    def hook(projection: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        by_head = args[0].unflatten(-1, (len(site.kept), site.head_dim))  # (B, T, heads, head_dim)
        leaf = torch.ones(by_head.shape[:-1], dtype=by_head.dtype, device=by_head.device, requires_grad=True)
        leaves.setdefault(site.name, []).append(leaf)
        return ((by_head * leaf[..., None]).flatten(-2), *args[1:])

    return hook
