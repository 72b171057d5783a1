"""The methods: each makes a smaller model with a given number of FLOPs, from a model and training data alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.pruning import textpruner
from benchmarks.pruning.data import Data, typical
from benchmarks.pruning.kwon import Kwon
from headcount.pruning import Pruning, prune

OURS = "ours"
BASELINES = ("kwon", "kwon-clip", "textpruner")


def ours(data: Data, ratio: float, units: tuple[str, ...]) -> Any:
    """headcount: `ratio` times fewer FLOPs by removing units of these kinds. Nothing is chosen on `data.select`."""
    settings = Pruning(units=units, flops=ratio, overlap="drop")  # type: ignore[call-arg]
    return prune(data.model, data.score, data.select, settings=settings).model


def maker(method: str, data: Data, results: Path) -> Callable[[float], Any]:
    """A function from a ratio of FLOPs to a smaller model; what all ratios share is computed once.

    results: where benchmarks/pruning/textpruner.py has written what TextPruner did.
    """
    if method in ("kwon", "kwon-clip"):
        beyond = "clip" if method == "kwon-clip" else "stop"
        return Kwon(data.model, data.score, typical(data.score), beyond).prune
    if method == "textpruner":
        return partial(textpruner.rebuild, data, results)
    return partial(ours, data, units=METHODS[method])


# What each method removes; a method of headcount is a set of units.
METHODS: dict[str, tuple[str, ...]] = {
    "heads": ("heads",),
    "neurons": ("neurons",),
    OURS: ("heads", "neurons"),
    "kwon": ("heads", "neurons"),
    "kwon-clip": ("heads", "neurons"),
    "textpruner": ("heads", "neurons"),
}
