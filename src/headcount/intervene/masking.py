"""`masked`: what if these heads or neurons were gone? Reversible, differentiable, under every attention kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from headcount.errors import HeadcountError, counted
from headcount.heads import Head, refuse_repeated
from headcount.structure import Anatomy, Site, anatomy, refuse_exported, whole_anatomy


@contextmanager
def masked(
    model: nn.Module,
    off: Iterable[Head | str] | str | None = None,
    *,
    xi: Mapping[Head | str, float | Tensor] | Tensor | None = None,
    units: str | Iterable[str] = "heads",
    fill: Mapping[str, Tensor] | None = None,
) -> Iterator[nn.Module]:
    """Multiply the output of each head or neuron by its xi (M19 section 2.3) as long as the block lasts.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4)).eval()
    >>> with masked(model, off=["encoder.0.1", "encoder_ffn.1.0-511"]):
    ...     shape = model(torch.tensor([[5, 6, 7]])).last_hidden_state.shape
    >>> shape
    torch.Size([1, 3, 32])

    off: heads, neurons and ranges to turn off, and whole sublayers (`encoder.3`, `encoder_ffn.3`).
    xi: instead, `{unit: value}`, or a tensor `[units]` or `[examples, units]` in the order of
        `anatomy(model, units).units`. It may require gradients. Rows of examples are repeated along with beams in
        `generate`.
    units: what a tensor `xi` has values for: "heads", "neurons" or both.
    fill: by the name of a site, `(heads, width)`: what a head that is off puts out instead of zeros.

    Masks can be nested (they multiply) and always end with the block. The projection's bias stays, as in `remove`.
    """
    if off is not None and xi is not None:
        raise HeadcountError("off and xi cannot both be given", advice="give either {off} or {xi}")
    if isinstance(xi, Tensor):
        shares = _split(anatomy(model, units), xi)
    elif xi is None or isinstance(xi, Mapping):
        found = whole_anatomy(model)
        shares = _by_site(found, dict.fromkeys(found.check(off or ()), 0.0) if xi is None else _expanded(found, xi))
    else:
        raise HeadcountError(f"xi is a {type(xi).__name__}; expected {{head: value}} or a tensor")
    if shares:
        refuse_exported(model)
    with ExitStack() as stack:
        for site, share in shares:
            handle = site.output.register_forward_pre_hook(_multiply(site, share, (fill or {}).get(site.name)))
            stack.callback(handle.remove)
        yield model


def _split(found: Anatomy, xi: Tensor) -> list[tuple[Site, Tensor]]:
    """Each site's share of the values of all units: ([examples,] units of the site)"""
    if "sublayers" in found.asked:
        raise HeadcountError(
            "a tensor xi has one value for each head or neuron, not for sublayers",
            advice="give {xi} as {{sublayer: value}}, or choose {units} from heads, neurons",
        )
    count = sum(len(site.kept) for site in found.sites)
    if xi.ndim not in (1, 2) or xi.shape[-1] != count or (xi.ndim == 2 and not len(xi)):
        raise HeadcountError(
            f"xi has shape {tuple(xi.shape)}; expected [{count}] or [examples, {count}], "
            f"in the order of anatomy(model, {'+'.join(found.asked)!r}).units"
        )
    shares = xi.split([len(site.kept) for site in found.sites], dim=-1)
    return [(site, share) for site, share in zip(found.sites, shares, strict=True) if site.kept]


def _expanded(found: Anatomy, xi: Mapping[Head | str, float | Tensor]) -> dict[Head, Any]:
    """The values by head; a range or sublayer gives its value to each of its units."""
    given = [(head, value) for unit, value in xi.items() for head in found.expand(unit)]
    refuse_repeated(head for head, _ in given)
    return dict(given)


def _by_site(found: Anatomy, given: Mapping[Head, Any]) -> list[tuple[Site, Tensor]]:
    """The xi of every unit at the sites that have one given: ([examples,] units of the site)"""
    tensors = [value for value in given.values() if isinstance(value, Tensor)]
    if any(tensor.ndim > 1 for tensor in tensors):
        raise HeadcountError("each value of xi must be a number or a tensor [examples]")
    dtype = reduce(torch.promote_types, (value.dtype for value in tensors), torch.get_default_dtype())
    device = tensors[0].device if tensors else None
    by_site: dict[str, dict[int, Any]] = {}
    for head, value in given.items():
        by_site.setdefault(head.site, {})[head.index] = value
    shares = []
    for name, values in by_site.items():
        site = found.site(name)
        columns = [values.get(index, 1.0) for index in site.kept]
        if any(isinstance(column, Tensor) for column in columns):
            wide = [torch.as_tensor(column, dtype=dtype, device=device) for column in columns]
            shares.append((site, torch.stack(torch.broadcast_tensors(*wide), dim=-1)))
        else:
            shares.append((site, torch.tensor(columns, dtype=dtype, device=device)))
    return shares


def _multiply(site: Site, share: Tensor, fill: Tensor | None) -> Any:
    def hook(projection: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        context = args[0]  # (B, T, units * width); OPT's feed-forward layers get (B * T, units)
        xi = share.to(device=context.device, dtype=context.dtype)
        if xi.ndim == 2:
            rows = _per_row(xi, context.shape[0], site)
            xi = rows.view(len(rows), *[1] * (context.ndim - 2), -1)  # (B, 1, units)
        by_unit = context.unflatten(-1, (len(site.kept), site.width))  # (B, T, units, width)
        scaled = by_unit * xi[..., None]
        if fill is not None:
            scaled = scaled + (1 - xi[..., None]) * fill.to(context)
        return (scaled.flatten(-2), *args[1:])

    return hook


def _per_row(xi: Tensor, batch: int, site: Site) -> Tensor:
    """Repeat each example's xi for its beams: (examples, heads) to (B, heads)."""
    if batch % len(xi):
        raise HeadcountError(
            f"xi has {counted(len(xi), 'row')}, one per example, "
            f"but {site.name} ran on a batch of {batch}, not a multiple"
        )
    return xi.repeat_interleave(batch // len(xi), dim=0)
