"""Where the work is done: cut into shards, here or on many machines, kept in run directories."""

from typing import Any

from headcount.engine.products import fast_products, product
from headcount.engine.shards import over_shards
from headcount.engine.work import (
    TOKENS,
    Arrays,
    Engine,
    Local,
    Progress,
    batches_by_length,
    device_type,
    is_finite,
    tokens_for,
    using,
)

__all__ = [
    "TOKENS",
    "Arrays",
    "Engine",
    "Local",
    "Progress",
    "Ray",
    "batches_by_length",
    "device_type",
    "fast_products",
    "is_finite",
    "over_shards",
    "product",
    "tokens_for",
    "using",
]


def __getattr__(name: str) -> Any:
    """`Ray` is imported when it is asked for: it needs the extra `ray`."""
    if name != "Ray":
        raise AttributeError(f"module 'headcount.engine' has no attribute {name!r}")
    from headcount.engine.ray import Ray

    return Ray
