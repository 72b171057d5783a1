"""Heads really gone: remove, save, load."""

from headcount.surgery.format import build_empty, model_class, read_config
from headcount.surgery.loading import fetch, load
from headcount.surgery.removal import refuse_wrapped, remove
from headcount.surgery.saving import save
from headcount.surgery.stock import as_stock

__all__ = [
    "as_stock",
    "build_empty",
    "fetch",
    "load",
    "model_class",
    "read_config",
    "refuse_wrapped",
    "remove",
    "save",
]
