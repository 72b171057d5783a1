"""`remove`: a copy of a model in which heads are really gone: smaller, faster, and the same otherwise."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

from torch import nn
from transformers.pytorch_utils import Conv1D

from headcount.anatomy import Anatomy, anatomy
from headcount.errors import UnsupportedModel
from headcount.heads import Head
from headcount.surgery.carve import carve
from headcount.surgery.trial import check_on_trial

Model = TypeVar("Model", bound=nn.Module)


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
    check_on_trial(model, found)
    if not inplace:
        model = copy.deepcopy(model)
        found = anatomy(model)
    for site in found.sites:
        kept = [head.index for head in site.heads if head not in gone]
        if len(kept) < len(site.kept):
            carve(site, kept)
    write_record(model)
    return model


def write_record(model: Any) -> None:
    """Write into the configuration which heads each site has left, so that every saved copy says so."""
    found = anatomy(model)
    if any(len(site.kept) < site.original for site in found.sites) and hasattr(model, "config"):
        model.config.headcount = {
            "version": 1,
            "sites": {
                site.name: {"kept": list(site.kept), "of": site.original, "group": site.group} for site in found.sites
            },
        }


def refuse_wrapped(found: Anatomy) -> None:
    """Refuse projections that something else has replaced: their weights are not where we would cut."""
    for site in found.sites:
        for projection in (site.output, *(module for _, module in site.inputs)):
            if type(projection) in (nn.Linear, Conv1D, nn.modules.linear.NonDynamicallyQuantizableLinear):
                continue
            source = f"{type(projection).__module__}.{type(projection).__name__}"
            advice = "merge it first (model.merge_and_unload())" if "peft" in source else "load the model unquantized"
            raise UnsupportedModel(f"cannot remove heads: a projection of {site.name} is a {source}; {advice}")
