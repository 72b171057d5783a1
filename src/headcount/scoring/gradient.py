"""M19's importance: the gradient of each example's loss with respect to each head's mask.

One leaf `xi[example, head]` and one backward pass of the summed loss give every example's own gradient for every head:
an example's loss depends on its own row of xi alone. Parameters are frozen, so that no gradient of theirs is computed:
it costs less than a training step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headcount.engine import TOKENS
from headcount.errors import HeadcountError, unknown
from headcount.intervene import masked
from headcount.runs import RunDirectory
from headcount.scoring.per_example import Progress, collect
from headcount.structure import AttentionSite, anatomy, device_of
from headcount.tasks import Batch, Task

BATCH = 32  # examples whose gradients `per="batch"` adds up, in the order of the data


def gradient(
    model: nn.Module,
    task: Task,
    *,
    per: str = "example",
    batch: int = BATCH,
    tokens: int = TOKENS,
    run: RunDirectory | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """I_h = E_x |dL(x)/dxi_h| (M19 eq. 2), its terms: (examples, heads).

    per: "example" is the paper's. "token" takes the absolute value for each token before they are added up, as the
        authors' own code does; "batch" for the mean over each `batch` examples, as public toolkits do: what is
        positive for one example and negative for another cancels out.
    tokens: per batch of the computation, padding included; changes nothing but memory.
    """
    if per == "token":
        return collect(model, task, _token_sums, what="gradient", tokens=tokens, run=run, progress=progress)
    if per not in ("example", "batch"):
        raise HeadcountError(unknown("per", per, ("example", "token", "batch")))
    signed = head_gradients(model, task, tokens=tokens, run=run, progress=progress)
    if per == "example":
        return np.abs(signed)
    starts = np.arange(0, len(signed), batch)
    sizes = np.diff([*starts, len(signed)])[:, None]
    return np.abs(np.add.reduceat(signed, starts, axis=0) / sizes)  # (batches, H)


def fisher(
    model: nn.Module,
    task: Task,
    *,
    tokens: int = TOKENS,
    run: RunDirectory | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """The diagonal of the empirical Fisher information, E_x (dL(x)/dxi_h)^2, its terms: (examples, heads)."""
    return head_gradients(model, task, tokens=tokens, run=run, progress=progress) ** 2


def head_gradients(
    model: nn.Module,
    task: Task,
    *,
    tokens: int = TOKENS,
    run: RunDirectory | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """dL(x)/dxi_h at xi = 1 for every example x and head h, signed: (examples, heads).

    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> from headcount.tasks import Classification
    >>> from headcount.tasks.toy import word_tokenizer
    >>> config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=20, pad_token_id=0)
    >>> rows = [{"text": "a fine film", "label": 1}, {"text": "dull", "label": 0}]
    >>> task = Classification(rows, word_tokenizer("a fine dull film"))
    >>> head_gradients(BertForSequenceClassification(config), task).shape
    (2, 8)
    """
    return collect(model, task, _example_gradients, what="gradient", tokens=tokens, run=run, progress=progress)


def _example_gradients(model: Any, task: Task, batch: Batch) -> Tensor:
    """(B, heads)"""
    device = device_of(model)
    xi = torch.ones(len(batch), len(anatomy(model).heads), device=device, requires_grad=True)
    with masked(model, xi=xi):
        loss = _loss(model, task, batch)
    return torch.autograd.grad(loss, xi)[0]


def _token_sums(model: Any, task: Task, batch: Batch) -> Tensor:
    """(B, heads), absolute values added up over the tokens"""
    return token_gradients(model, lambda: _loss(model, task, batch)).abs().sum(1)


def _loss(model: Any, task: Task, batch: Batch) -> Tensor:
    try:
        loss = task.losses(task.outputs(model, batch), batch).sum()
    except (AttributeError, NotImplementedError) as error:
        raise HeadcountError(
            f"{type(model).__name__} gives no loss to take the gradient of ({error}); "
            "load it with the head of its task, for example …ForSequenceClassification"
        ) from error
    if not loss.requires_grad:
        raise HeadcountError(f"the loss of {type(model).__name__} does not depend on its heads in a differentiable way")
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
