"""`masked`: what if these heads were gone? Reversible, differentiable, under every attention kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from headcount.errors import HeadcountError
from headcount.heads import Head
from headcount.structure import Anatomy, Site, anatomy


@contextmanager
def masked(
    model: nn.Module,
    off: Iterable[Head | str] | str | None = None,
    *,
    xi: Mapping[Head | str, float | Tensor] | Tensor | None = None,
    fill: Mapping[str, Tensor] | None = None,
) -> Iterator[nn.Module]:
    """Multiply the output of each head by its xi (M19 section 2.3) as long as the block lasts.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4)).eval()
    >>> with masked(model, off=["encoder.0.1"]):
    ...     shape = model(torch.tensor([[5, 6, 7]])).last_hidden_state.shape
    >>> shape
    torch.Size([1, 3, 32])

    off: heads to turn off.
    xi: instead, `{head: value}`, or a tensor `[heads]` or `[examples, heads]` in the order of `anatomy(model).heads`.
        It may require gradients. Rows of examples are repeated along with beams in `generate`.
    fill: by the name of a site, `(heads, width)`: what a head that is off puts out instead of zeros.

    Masks can be nested (they multiply) and always end with the block. The projection's bias stays, as in `remove`.
    """
    found = anatomy(model)
    values = _values(found, off, xi)
    with ExitStack() as stack:
        for site, start in _starts(found):
            share = values[..., start : start + len(site.kept)]  # ([examples,] site heads)
            if isinstance(xi, Tensor) or bool((share != 1).any()):
                handle = site.output.register_forward_pre_hook(_multiply(site, share, (fill or {}).get(site.name)))
                stack.callback(handle.remove)
        yield model


def _values(found: Anatomy, off: Any, xi: Any) -> Tensor:
    """The xi of every head: ([examples,] heads)"""
    count = len(found.heads)
    if off is not None and xi is not None:
        raise HeadcountError("off and xi are two ways to say the same", advice="give either {off} or {xi}")
    if isinstance(xi, Tensor):
        if xi.ndim not in (1, 2) or xi.shape[-1] != count or (xi.ndim == 2 and not len(xi)):
            raise HeadcountError(
                f"xi has shape {tuple(xi.shape)}; expected [{count}] or [examples, {count}], "
                "in the order of anatomy(model).heads"
            )
        return xi
    if xi is not None and not isinstance(xi, Mapping):
        raise HeadcountError(f"xi is a {type(xi).__name__}; expected {{head: value}} or a tensor")
    given: dict[Head, Any] = dict.fromkeys(found.check(() if off is None else off), 0.0)
    if xi is not None:
        given = dict(zip(found.check(xi), xi.values(), strict=True))
    tensors = [value for value in given.values() if isinstance(value, Tensor)]
    dtype = reduce(torch.promote_types, (value.dtype for value in tensors), torch.get_default_dtype())
    device = tensors[0].device if tensors else None
    columns = [torch.as_tensor(given.get(head, 1.0), dtype=dtype, device=device) for head in found.heads]
    if any(column.ndim > 1 for column in columns):
        raise HeadcountError("each value of xi must be a number or a tensor [examples]")
    if not columns:  # all heads have been removed
        return torch.ones(0)
    return torch.stack(torch.broadcast_tensors(*columns), dim=-1)


def _starts(found: Anatomy) -> Iterator[tuple[Site, int]]:
    start = 0
    for site in found.sites:
        if site.kept:
            yield site, start
        start += len(site.kept)


def _multiply(site: Site, share: Tensor, fill: Tensor | None) -> Any:
    def hook(projection: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        context = args[0]  # (B, T, heads * width)
        xi = share.to(device=context.device, dtype=context.dtype)
        if xi.ndim == 2:
            xi = _per_row(xi, context.shape[0], site)[:, None]  # (B, 1, heads)
        by_head = context.unflatten(-1, (len(site.kept), site.width))  # (B, T, heads, width)
        scaled = by_head * xi[..., None]
        if fill is not None:
            scaled = scaled + (1 - xi[..., None]) * fill.to(context)
        return (scaled.flatten(-2), *args[1:])

    return hook


def _per_row(xi: Tensor, batch: int, site: Site) -> Tensor:
    """Repeat each example's xi for its beams: (examples, heads) to (B, heads)."""
    if batch % len(xi):
        raise HeadcountError(
            f"xi has {len(xi)} rows, one per example, but {site.name} ran on a batch of {batch}, not a multiple"
        )
    return xi.repeat_interleave(batch // len(xi), dim=0)
