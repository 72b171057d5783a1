"""A tiny masked-equals-removed trial for attention that was recognised by its projection names only."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from headcount.anatomy import Anatomy, AttentionSite
from headcount.errors import UnsupportedModel
from headcount.surgery.carve import carve


def check_on_trial(model: nn.Module, found: Anatomy) -> None:
    """Before heads are removed from an undeclared family, see on one module of each class that removal is exact."""
    tried: set[type] = set()
    for site in found.sites:
        if site.family.structural and type(site.module) not in tried and len(site.kept) > 1:
            tried.add(type(site.module))
            _try(model, site)


def _try(model: Any, site: AttentionSite) -> None:
    """Record what the whole model feeds the site, then compare one head masked with one head carved away."""
    name = type(site.module).__name__
    dummy = getattr(model, "dummy_inputs", None)
    if not dummy:
        raise UnsupportedModel(
            f"{name} is not a declared family, and the model offers no dummy inputs to try removal on"
        )
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            fed: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
            hook = site.module.register_forward_pre_hook(lambda m, a, k: fed.append((a, k)), with_kwargs=True)
            try:
                device = next(model.parameters()).device
                model(**{key: value.to(device) for key, value in dummy.items()})
            finally:
                hook.remove()
            if not fed:
                raise UnsupportedModel(f"{name} ({site.name}) did not run on the model's dummy inputs")
            _compare(site, *fed[0])
    finally:
        model.train(training)


def _compare(site: AttentionSite, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    kwargs = {key: value for key, value in kwargs.items() if "past" not in key}
    zeroed: Any = copy.deepcopy([site.module, site.output])
    carved: Any = copy.deepcopy([site.module, site.output])
    zeroed[1].weight[:, -site.head_dim :] = 0
    trial = AttentionSite(**{**vars(site), "module": carved[0], "output": carved[1]})
    try:
        carve(trial, site.kept[:-1])
        difference = (_result(site, zeroed, args, kwargs) - _result(site, carved, args, kwargs)).abs().max().item()
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise UnsupportedModel(
            f"{type(site.module).__name__} cannot work with fewer heads: {str(error).splitlines()[0]}; "
            "declare a family for it (CONTRIBUTING.md shows how in 20 lines)"
        ) from error
    if not difference < 1e-4:
        raise UnsupportedModel(
            f"removing a head from {type(site.module).__name__} is not masking it: off by {difference:.2g}; "
            "declare a family for it (CONTRIBUTING.md shows how in 20 lines)"
        )


def _result(site: AttentionSite, holder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    output = holder[0](*args, **kwargs)
    output = output[0] if isinstance(output, tuple) else output
    return holder[1](output) if site.family.output.startswith("^") else output
