"""`remove`: a copy of a model in which heads or neurons are really gone: smaller, faster, and otherwise the same.

Those of a family that nobody declared are removed only after a trial has shown that removal equals masking.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from headcount.errors import HeadcountError, UnsupportedModel, first_line
from headcount.heads import Head
from headcount.intervene import is_captured
from headcount.structure import (
    AttentionSite,
    FeedForwardSite,
    Site,
    has_own_forward,
    is_hooked,
    is_transposed,
    refuse_exported,
    stranger_in,
    tree_map,
    whole_anatomy,
)
from headcount.surgery.carve import carve
from headcount.surgery.other_libraries import make_portable
from headcount.surgery.record import write_record

TOLERANCE = 1e-4  # of the trial, in float32
ADVICE = "declare a family for it (CONTRIBUTING.md shows how in 20 lines)"

Model = TypeVar("Model", bound=nn.Module)


def remove(model: Model, heads: Iterable[Head | str] | str, *, inplace: bool = False) -> Model:
    """Remove heads, neurons or whole sublayers, and all that belongs to them alone; what stays keeps its name.

    >>> from transformers import BertConfig, BertModel
    >>> from headcount import anatomy
    >>> size = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    >>> smaller = remove(BertModel(BertConfig(**size)), ["encoder.0.1", "encoder.1.3", "encoder_ffn.0.0-59"])
    >>> anatomy(smaller).sites[0].heads
    (Head.parse('encoder.0.0'), Head.parse('encoder.0.2'), Head.parse('encoder.0.3'))
    >>> anatomy(smaller, "neurons").sites[0].kept
    (60, 61, 62, 63)

    heads: heads and neurons by name, ranges (`encoder_ffn.0.0-59`), whole sublayers (`encoder.0`, `encoder_ffn.0`).

    Returns a copy, or with `inplace=True` the model itself. A key-value head is removed with its last query head. A
    site without heads or neurons computes nothing and adds only its projection's bias.
    """
    refuse_exported(model)
    found = whole_anatomy(model)
    gone: dict[str, set[int]] = {}
    for head in found.check(heads):
        gone.setdefault(head.site, set()).add(head.index)
    touched = [site for site in found.sites if site.name in gone]
    refuse_wrapped([*(site for site in found.sites if isinstance(site, AttentionSite)), *touched])
    _refuse_watched(found.sites)
    check_on_trial(model, [(site, _left(site, gone)) for site in touched if site.family.structural])
    if not inplace:
        model = copy.deepcopy(model)
        found = whole_anatomy(model)
    for site in found.sites:
        if site.name in gone:
            carve(site, _left(site, gone))
    write_record(model)
    make_portable(model)
    return model


def _left(site: Site, gone: Mapping[str, set[int]]) -> list[int]:
    """The units that stay at a site, by original index."""
    return [index for index in site.kept if index not in gone[site.name]]


def refuse_wrapped(sites: Iterable[Site]) -> None:
    """Refuse projections that something else has replaced: their weights are not where we would cut."""
    for site in sites:
        if has_own_forward(site.module):
            raise UnsupportedModel(
                f"cannot remove {site.unit}s: something (accelerate's device_map?) has replaced the forward of "
                f"{site.name}",
                advice="load the whole model to one device first",
            )
        for projection in (site.output, *(module for _, module in site.inputs)):
            stranger = stranger_in(projection)
            if stranger is None:
                continue
            name = f"{stranger.__module__}.{stranger.__name__}"
            advice = "merge it first (model.merge_and_unload())" if "peft" in name else "load the model unquantized"
            raise UnsupportedModel(
                f"cannot remove {site.unit}s: a projection of {site.name} is a {name}", advice=advice
            )


def _refuse_watched(sites: Iterable[Site]) -> None:
    """A copy made inside `masked` or `capture` would keep their hooks for ever."""
    for site in sites:
        if is_hooked(site.output, by="headcount.") or is_captured(site):
            raise HeadcountError(
                f"{site.name} is being masked or captured", advice=f"remove {site.unit}s outside of that block"
            )


@torch.no_grad()
def check_on_trial(model: nn.Module, left: Sequence[tuple[Site, list[int]]]) -> None:
    """Before units of an undeclared family are removed, check at each site that loses some that removal is exact.

    left: sites, and the units that each would keep.
    """
    if not left:
        return
    fed = _record_inputs(model, [site for site, _ in left])
    for site, kept in left:
        if site.name not in fed:
            raise UnsupportedModel(f"{_name(site)} ({site.name}) did not run on the model's dummy inputs")
        _compare(site, kept, *fed[site.name])


def _tried(site: Site) -> nn.Module:
    """The module that a trial runs: neurons lie in several, which only their layer has in common."""
    return site.block if isinstance(site, FeedForwardSite) else site.module


def _record_inputs(model: Any, sites: list[Site]) -> dict[str, tuple[Any, Any]]:
    """What the whole model feeds each site when it runs on its dummy inputs, in float32 and without a cache."""
    fed: dict[str, tuple[Any, Any]] = {}
    with ExitStack() as stack:
        stack.callback(model.train, model.training)
        model.eval()
        for site in sites:

            def keep(module: nn.Module, args: Any, kwargs: Any, name: str = site.name) -> None:
                fed.setdefault(name, tree_map(_to_float, (args, kwargs)))

            stack.callback(_tried(site).register_forward_pre_hook(keep, with_kwargs=True).remove)
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


def _compare(site: Site, kept: list[int], args: Any, kwargs: Any) -> None:
    """Compare units zeroed with units carved away, on copies of the one module."""
    kwargs = {key: value for key, value in kwargs.items() if "past" not in key and "cache" not in key}
    zeroed: Any = [part.float() for part in copy.deepcopy([_tried(site), site.output])]
    carved: Any = copy.deepcopy(zeroed)
    stay = set(kept)
    lost = [place for index, place in site.places.items() if index not in stay]
    columns = torch.tensor([place * site.width + i for place in lost for i in range(site.width)], dtype=torch.long)
    zeroed[1].weight.index_fill_(0 if is_transposed(site.output) else 1, columns.to(zeroed[1].weight.device), 0)
    expected = zeroed[0](*args, **kwargs)
    try:
        carve(_on_copy(site, *carved), kept)
        found = carved[0](*args, **kwargs)
        if type(found) is not type(expected) or (isinstance(found, tuple) and len(found) != len(expected)):
            raise TypeError(f"without {site.unit}s, it would return {_form(found)} instead of {_form(expected)}")
        difference = (_projected(site, zeroed, expected) - _projected(site, carved, found)).abs().max().item()
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise UnsupportedModel(
            f"{_name(site)} cannot work with fewer {site.unit}s: {first_line(error)}", advice=ADVICE
        ) from error
    if not difference < TOLERANCE:
        raise UnsupportedModel(
            f"removing a {site.unit} from {_name(site)} differs from masking it: by {difference:.2g} at {site.name}",
            advice=ADVICE,
        )


def _on_copy(site: Site, tried: nn.Module, output: nn.Module) -> Site:
    """The same site in a copy of what a trial runs."""
    if isinstance(site, FeedForwardSite):
        return replace(site, block=tried, module=output, output=output)
    return replace(site, module=tried, output=output)


def _projected(site: Site, parts: Any, output: Any) -> Tensor:
    output = output[0] if isinstance(output, tuple) else output
    in_parent = isinstance(site, AttentionSite) and site.family.projects_in_parent
    return parts[1](output) if in_parent else output


def _to_float(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def _name(site: Site) -> str:
    return type(_tried(site)).__name__


def _form(output: Any) -> str:
    return f"a tuple of {len(output)}" if isinstance(output, tuple) else f"a {type(output).__name__}"
