"""`remove`: a copy of a model in which heads are really gone: smaller, faster, and the same otherwise."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headcount.anatomy import Anatomy, anatomy
from headcount.errors import HeadcountError, UnsupportedModel
from headcount.heads import Head
from headcount.surgery.carve import carve
from headcount.surgery.record import write_record
from headcount.surgery.trial import check_on_trial

Model = TypeVar("Model", bound=nn.Module)
PLAIN = (nn.Linear, Conv1D, nn.modules.linear.NonDynamicallyQuantizableLinear)


def remove(model: Model, heads: Iterable[Head | str] | str, *, inplace: bool = False) -> Model:
    """Remove heads and everything that belongs to them alone; heads that stay keep their names.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4))
    >>> smaller = remove(model, ["encoder.0.1", "encoder.1.3"])
    >>> anatomy(smaller).sites[0].heads
    (Head.parse('encoder.0.0'), Head.parse('encoder.0.2'), Head.parse('encoder.0.3'))

    Returns a copy, or with `inplace=True` the model itself. A key-value head goes when all its query heads have gone; a
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
        if "forward" in vars(site.module):
            raise UnsupportedModel(
                f"cannot remove heads: something (accelerate's device_map?) has put itself in front of {site.name}; "
                "load the whole model to one device first"
            )
        for projection in (site.output, *(module for _, module in site.inputs)):
            if type(projection) in PLAIN and type(projection.weight.data) is Tensor:
                continue
            kind = type(projection) if type(projection) not in PLAIN else type(projection.weight.data)
            source = f"{kind.__module__}.{kind.__name__}"
            advice = "merge it first (model.merge_and_unload())" if "peft" in source else "load the model unquantized"
            raise UnsupportedModel(f"cannot remove heads: a projection of {site.name} is a {source}; {advice}")


def _refuse_watched(found: Anatomy) -> None:
    """A copy made inside `masked` or `capture` would keep their hooks for ever."""
    for site in found.sites:
        hooks: Any = site.output._forward_pre_hooks
        if any(getattr(hook, "__module__", "").startswith("headcount.") for hook in hooks.values()):
            raise HeadcountError(f"{site.name} is being masked or captured; remove heads outside of that block")
