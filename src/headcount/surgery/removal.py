"""`remove`: a copy of a model in which heads are really gone: smaller, faster, and otherwise the same.

Heads of a family that nobody declared are removed only after a trial has shown that removal equals masking.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from headcount.errors import HeadcountError, UnsupportedModel, first_line
from headcount.heads import Head
from headcount.intervene import is_captured
from headcount.structure import Anatomy, AttentionSite, anatomy, has_own_forward, is_hooked, stranger_in, tree_map
from headcount.surgery.carve import carve
from headcount.surgery.format import write_record

TOLERANCE = 1e-4  # of the trial, in float32
ADVICE = "declare a family for it (CONTRIBUTING.md shows how in 20 lines)"

Model = TypeVar("Model", bound=nn.Module)


def remove(model: Model, heads: Iterable[Head | str] | str, *, inplace: bool = False) -> Model:
    """Remove heads and everything that belongs to them alone; heads that stay keep their names.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4))
    >>> smaller = remove(model, ["encoder.0.1", "encoder.1.3"])
    >>> anatomy(smaller).sites[0].heads
    (Head.parse('encoder.0.0'), Head.parse('encoder.0.2'), Head.parse('encoder.0.3'))

    Returns a copy, or with `inplace=True` the model itself. A key-value head is removed with its last query head. A
    site without heads skips attention and adds only its projection's bias.
    """
    found = anatomy(model)
    gone = set(found.check(heads))
    refuse_wrapped(found)
    _refuse_watched(found)
    check_on_trial(model, found, gone)
    if not inplace:
        model = copy.deepcopy(model)
        found = anatomy(model)
    for site in found.sites:
        kept = [head.index for head in site.heads if head not in gone]
        if len(kept) < len(site.kept):
            carve(site, kept)
    write_record(model)
    return model


def refuse_wrapped(found: Anatomy) -> None:
    """Refuse projections that something else has replaced: their weights are not where we would cut."""
    for site in found.sites:
        if has_own_forward(site.module):
            raise UnsupportedModel(
                f"cannot remove heads: something (accelerate's device_map?) has replaced the forward of {site.name}",
                advice="load the whole model to one device first",
            )
        for projection in (site.output, *(module for _, module in site.inputs)):
            stranger = stranger_in(projection)
            if stranger is None:
                continue
            name = f"{stranger.__module__}.{stranger.__name__}"
            advice = "merge it first (model.merge_and_unload())" if "peft" in name else "load the model unquantized"
            raise UnsupportedModel(f"cannot remove heads: a projection of {site.name} is a {name}", advice=advice)


def _refuse_watched(found: Anatomy) -> None:
    """A copy made inside `masked` or `capture` would keep their hooks for ever."""
    for site in found.sites:
        if is_hooked(site.output, by="headcount.") or is_captured(site):
            raise HeadcountError(
                f"{site.name} is being masked or captured", advice="remove heads outside of that block"
            )


@torch.no_grad()
def check_on_trial(model: nn.Module, found: Anatomy, gone: set[Head]) -> None:
    """Before heads of an undeclared family are removed, check at each site that loses some that removal is exact."""
    sites = [site for site in found.sites if site.family.structural and not gone.isdisjoint(site.heads)]
    if not sites:
        return
    fed = _record_inputs(model, sites)
    for site in sites:
        if site.name not in fed:
            raise UnsupportedModel(f"{_name(site)} ({site.name}) did not run on the model's dummy inputs")
        _compare(site, [head.index for head in site.heads if head not in gone], *fed[site.name])


def _record_inputs(model: Any, sites: list[AttentionSite]) -> dict[str, tuple[Any, Any]]:
    """What the whole model feeds each site when it runs on its dummy inputs, in float32 and without a cache."""
    fed: dict[str, tuple[Any, Any]] = {}
    with ExitStack() as stack:
        stack.callback(model.train, model.training)
        model.eval()
        for site in sites:

            def keep(module: nn.Module, args: Any, kwargs: Any, name: str = site.name) -> None:
                fed.setdefault(name, tree_map(_to_float, (args, kwargs)))

            stack.callback(site.module.register_forward_pre_hook(keep, with_kwargs=True).remove)
        try:
            model(**_dummy_inputs(model))
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            raise UnsupportedModel(
                f"{_name(sites[0])} is not a declared family, and the model does not run on dummy inputs, "
                f"so removal cannot be tried: {first_line(error)}"
            ) from error
    return fed


def _dummy_inputs(model: Any) -> dict[str, Tensor]:
    parameter = next(model.parameters())
    config: Any = getattr(model, "config", None)
    if getattr(model, "main_input_name", "") == "pixel_values" and isinstance(getattr(config, "image_size", None), int):
        size, channels = config.image_size, getattr(config, "num_channels", 3)
        return {"pixel_values": torch.rand(1, channels, size, size).to(parameter)}
    dummy = getattr(model, "dummy_inputs", None) or {}
    return {key: value.to(parameter.device) for key, value in dummy.items()}


def _compare(site: AttentionSite, kept: list[int], args: Any, kwargs: Any) -> None:
    """Compare heads zeroed with heads carved away, on copies of the one module."""
    kwargs = {key: value for key, value in kwargs.items() if "past" not in key and "cache" not in key}
    zeroed: Any = [part.float() for part in copy.deepcopy([site.module, site.output])]
    carved: Any = copy.deepcopy(zeroed)
    for position, index in enumerate(site.kept):
        if index not in kept:
            zeroed[1].weight[:, position * site.width : (position + 1) * site.width] = 0
    expected = zeroed[0](*args, **kwargs)
    trial = replace(site, module=carved[0], output=carved[1])
    try:
        carve(trial, kept)
        found = carved[0](*args, **kwargs)
        if type(found) is not type(expected) or (isinstance(found, tuple) and len(found) != len(expected)):
            raise TypeError(f"without heads, it would return {_form(found)} instead of {_form(expected)}")
        difference = (_projected(site, zeroed, expected) - _projected(site, carved, found)).abs().max().item()
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise UnsupportedModel(
            f"{_name(site)} cannot work with fewer heads: {first_line(error)}", advice=ADVICE
        ) from error
    if not difference < TOLERANCE:
        raise UnsupportedModel(
            f"removing a head from {_name(site)} is not masking it: {site.name} off by {difference:.2g}", advice=ADVICE
        )


def _projected(site: AttentionSite, parts: Any, output: Any) -> Tensor:
    output = output[0] if isinstance(output, tuple) else output
    return parts[1](output) if site.family.projects_in_parent else output


def _to_float(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def _name(site: AttentionSite) -> str:
    return type(site.module).__name__


def _form(output: Any) -> str:
    return f"a tuple of {len(output)}" if isinstance(output, tuple) else f"a {type(output).__name__}"
