"""The report's style and script, kept as plain files beside this one."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib.resources import files


@lru_cache
def asset(name: str) -> str:
    return (files("headcount.report") / name).read_text(encoding="utf-8")


def fingerprint(content: str) -> str:
    """How a content security policy names an inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def standalone(chart: str) -> str:
    """A chart as a file of its own: with its colours, on white."""
    opening, _, rest = chart.partition(">")
    style = asset("chart.css").replace("]]>", "")
    background = '<rect width="100%" height="100%" fill="#fff"/>'
    return f'{opening} width="540" font-family="system-ui, sans-serif"><style>{style}</style>{background}{rest}\n'
