"""Heads really gone: remove, save, load."""

from headcount.surgery.load import load
from headcount.surgery.remove import remove
from headcount.surgery.storage import save

__all__ = ["load", "remove", "save"]
