"""Where the heads are: sites, families, and how to find them."""

from headcount.structure.families import FAMILIES
from headcount.structure.family import Family, Part, separate
from headcount.structure.inputs import random_inputs, start_token
from headcount.structure.sites import Anatomy, AttentionSite, anatomy
from headcount.structure.transformers_internals import (
    ALIGNMENT,
    UNGROUPED,
    ConfigView,
    Substitutes,
    blank_context,
    device_of,
    has_interface,
    hidden_of,
    kernel_below,
    with_hidden,
)

__all__ = [
    "ALIGNMENT",
    "FAMILIES",
    "UNGROUPED",
    "Anatomy",
    "AttentionSite",
    "ConfigView",
    "Family",
    "Part",
    "Substitutes",
    "anatomy",
    "blank_context",
    "device_of",
    "has_interface",
    "hidden_of",
    "kernel_below",
    "random_inputs",
    "separate",
    "start_token",
    "with_hidden",
]
