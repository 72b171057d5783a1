"""Heads really gone: remove them, save what is left, load it again."""

from headcount.surgery.loading import build_empty, load, model_class, parse_config, read_checkpoint, read_config
from headcount.surgery.model_card import Evidence
from headcount.surgery.other_libraries import class_for
from headcount.surgery.removal import refuse_wrapped, remove
from headcount.surgery.saving import as_stock, refuse_strangers, rounded, save

__all__ = [
    "Evidence",
    "as_stock",
    "build_empty",
    "class_for",
    "load",
    "model_class",
    "parse_config",
    "read_checkpoint",
    "read_config",
    "refuse_strangers",
    "refuse_wrapped",
    "remove",
    "rounded",
    "save",
]
