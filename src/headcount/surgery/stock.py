"""Pruned models that need no headcount to load: the same number of heads in every layer, said in the configuration."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.initialization import no_init_weights

from headcount.structure import AttentionSite, anatomy


def as_stock(model: Any) -> tuple[dict[str, Tensor] | None, dict[str, Any]]:
    """The weights and configuration changes with which plain `from_pretrained` loads the model.

    Returns `(None, {})` where there is no such form: an unpruned model, heads that differ between layers, a family
    whose head size follows from its number of heads, or a number of heads that its configuration does not take.
    """
    sites = anatomy(model).sites
    if not is_uniform(sites) or all(len(site.kept) == site.original for site in sites):
        return None, {}
    first = sites[0]
    keys = first.family.uniform
    changes: dict[str, Any] = {keys["heads"]: len(first.kept)}
    if "kv_heads" in keys:
        changes[keys["kv_heads"]] = len(first.kv_kept)
    if "head_dim" in keys:
        changes[keys["head_dim"]] = first.head_dim
    weights = _stock_weights(model, sites)
    return (weights, changes) if _can_be_built(model, weights, changes) else (None, {})


def is_uniform(sites: tuple[AttentionSite, ...]) -> bool:
    """Whether every site has equally many heads, in even groups, in a family that can say so."""
    first = sites[0]
    if not first.kept or any(site.family is not first.family or not site.family.uniform for site in sites):
        return False
    if any((len(site.kept), len(site.kv_kept)) != (len(first.kept), len(first.kv_kept)) for site in sites):
        return False
    if any(not _even(site) for site in sites):
        return False
    # A position bias is shared by index: the heads of one stack must be the same in every layer.
    biased = [site for site in sites if _has_shared_bias(site)]
    return all(site.kept == other.kept for site in biased for other in sites if other.kind == site.kind)


def _can_be_built(model: Any, weights: dict[str, Tensor] | None, changes: dict[str, Any]) -> bool:
    """Whether the stock class takes the new configuration (Llama's wants a divisor) and makes these shapes of it."""
    try:
        config = type(model.config).from_dict({**model.config.to_dict(), "headcount": None, **changes})
        with torch.device("meta"), no_init_weights():
            stock = type(model)(config)
    except Exception:  # transformers validates configurations with errors of many kinds
        return False
    have = {name: tensor.shape for name, tensor in (weights or model.state_dict()).items()}
    return have == {name: tensor.shape for name, tensor in stock.state_dict().items()}


def _even(site: AttentionSite) -> bool:
    share = [site.kv_kept.index(index // site.group) for index in site.kept]
    size = len(site.kept) // len(site.kv_kept)
    return share == [position // size for position in range(len(site.kept))]


def _has_shared_bias(site: AttentionSite) -> bool:
    return bool(getattr(site.module, "has_relative_attention_bias", False))


def _stock_weights(model: Any, sites: tuple[AttentionSite, ...]) -> dict[str, Tensor] | None:
    """The position bias keeps a column for every original head; the stock form has only those of the heads left."""
    biased = [site for site in sites if _has_shared_bias(site)]
    if not biased:
        return None
    state = dict(model.state_dict())
    for site in biased:
        name = f"{site.path}.relative_attention_bias.weight"
        state[name] = state[name][:, [site.built.index(head) for head in site.kept]].contiguous()
    return state
