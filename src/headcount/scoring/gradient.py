"""M19's importance: the gradient of each example's loss with respect to each head's mask xi.

One leaf `xi[example, head]` and one backward pass of the summed loss give every example's own gradient for every head,
since an example's loss depends on its own row of xi alone. The parameters are frozen and get no gradients, so a pass
costs less than a training step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from headcount.errors import HeadcountError, unknown
from headcount.intervene import masked
from headcount.scoring.per_example import PassOptions, collect, needs_task_head
from headcount.structure import AttentionSite, anatomy, device_of
from headcount.tasks import Batch, Task

if TYPE_CHECKING:
    from typing_extensions import Unpack

PER = ("example", "token", "batch")
BATCH = 32  # examples, in the order of the data


def gradient(
    model: nn.Module, task: Task, *, per: str = "example", batch: int = BATCH, **how: Unpack[PassOptions]
) -> np.ndarray:
    """I_h = E_x |dL(x)/dxi_h| (M19 eq. 2), its terms: (examples, heads).

    per: what the absolute value is taken of. "example" is the paper's; "token" takes it for each token and sums over
        the tokens, as the authors' code does; "batch" takes it of the mean over `batch` examples, as public toolkits
        do: gradients of opposite sign cancel out.
    how: the options of the pass.
    """
    if per == "token":
        return collect(model, task, _token_sums, what="gradient", **how)
    if per not in PER:
        raise HeadcountError(unknown("per", per, PER))
    signed = head_gradients(model, task, **how)
    if per == "example":
        return np.abs(signed)
    starts = np.arange(0, len(signed), batch)
    sizes = np.diff([*starts, len(signed)])[:, None]
    return np.abs(np.add.reduceat(signed, starts, axis=0) / sizes)  # (batches, H)


def fisher(model: nn.Module, task: Task, **how: Unpack[PassOptions]) -> np.ndarray:
    """The diagonal of the empirical Fisher information, E_x (dL(x)/dxi_h)^2, its terms: (examples, heads)."""
    return head_gradients(model, task, **how) ** 2


def head_gradients(model: nn.Module, task: Task, **how: Unpack[PassOptions]) -> np.ndarray:
    """dL(x)/dxi_h at xi = 1 for every example x and head h, signed: (examples, heads).

    >>> from headcount.tasks.toy import toy_classifier
    >>> head_gradients(*toy_classifier()).shape
    (2, 8)
    """
    return collect(model, task, _example_gradients, what="gradient", **how)


def _example_gradients(model: Any, task: Task, batch: Batch) -> Tensor:
    """(B, heads)"""
    device = device_of(model)
    xi = torch.ones(len(batch), len(anatomy(model).heads), device=device, requires_grad=True)
    with masked(model, xi=xi):
        loss = _loss(model, task, batch)
    return torch.autograd.grad(loss, xi)[0]


def _token_sums(model: Any, task: Task, batch: Batch) -> Tensor:
    """(B, heads), absolute values summed over the tokens"""
    return token_gradients(model, lambda: _loss(model, task, batch)).abs().sum(1)


def _loss(model: Any, task: Task, batch: Batch) -> Tensor:
    with needs_task_head(model, "loss to take the gradient of"):
        loss = task.losses(task.outputs(model, batch), batch).sum()
    if not loss.requires_grad:
        raise HeadcountError(f"the loss of {type(model).__name__} is not differentiable with respect to its heads")
    return loss


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
    # ALBERT runs one site several times: a head's gradient at a token is the sum over its runs.
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
