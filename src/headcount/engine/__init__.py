"""Where the work is done: cut into shards, here or on many machines, kept in run directories."""

from headcount.engine.batches import TOKENS, batches_by_length, tokens_for
from headcount.engine.shards import over_shards
from headcount.engine.work import Arrays, Engine, Local, Progress, device_type, is_finite, using

__all__ = [
    "TOKENS",
    "Arrays",
    "Engine",
    "Local",
    "Progress",
    "batches_by_length",
    "device_type",
    "is_finite",
    "over_shards",
    "tokens_for",
    "using",
]
