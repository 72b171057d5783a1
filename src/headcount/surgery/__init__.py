"""Heads really gone: remove them, save what is left, load it again."""

from headcount.surgery.loading import build_empty, load, model_class
from headcount.surgery.reading import read_config
from headcount.surgery.removal import refuse_wrapped, remove
from headcount.surgery.saving import as_stock, refuse_strangers, save

__all__ = [
    "as_stock",
    "build_empty",
    "load",
    "model_class",
    "read_config",
    "refuse_strangers",
    "refuse_wrapped",
    "remove",
    "save",
]
