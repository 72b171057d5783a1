"""The methods: each makes a smaller model with a given number of FLOPs, from a model and training data alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.pruning import textpruner
from benchmarks.pruning.data import Data, typical
from benchmarks.pruning.kwon import Kwon
from headcount.errors import HeadcountError
from headcount.pruning import Pruning
from headcount.pruning.calibration import Calibration
from headcount.pruning.cut_size import bisect, cut_sizes
from headcount.pruning.search import Cut, CutSearch
from headcount.pruning.unit_costs import flops_of
from headcount.settings import SEARCHES
from headcount.surgery import remove

OURS = "ours"
BASELINES = ("kwon", "kwon-clip", "textpruner")


class Ours:
    """headcount, by units of these kinds: what `prune` does for a share of the FLOPs, in one search for all ratios.

    Units are scored on as many examples as `prune` takes by default; all of the data is there for calibration.

    knobs: fields of `Pruning`, such as the method.
    """

    def __init__(self, data: Data, units: tuple[str, ...], **knobs: Any) -> None:
        self.data, self.before = data, flops_of(data.model, data.score)
        settings = Pruning(flops=0.99, units=units, **knobs)
        scored = data.score.subset(range(min(len(data.score), settings.score_examples)))
        calibration = Calibration(data.model, data.score)
        self.search = CutSearch(data.model, scored, settings, calibration=calibration)
        self.steps = self.search.cuts(cut_sizes(settings, self.search.total))
        self.made = [self.search.whole]

    def prune(self, ratio: float) -> Any:
        """The smallest cut with `ratio` times fewer FLOPs. Ratios must not fall from call to call."""
        while self._ratio(self.made[-1]) < ratio:
            cut = next(self.steps, None)
            if cut is None:
                most = self._ratio(self.made[-1])
                raise HeadcountError(f"without any of these units there are only {most:.2f} times fewer FLOPs")
            self.made = [*self.made[-1:], cut]
        if len(self.made) < 2 or self._ratio(self.made[0]) >= ratio:
            return self.made[0].model
        return bisect(self.search, *self.made, lambda cut: self._ratio(cut) >= ratio)[1].model

    def _ratio(self, cut: Cut) -> float:
        return self.before / flops_of(remove(self.data.model, cut.removed), self.data.score)


def maker(method: str, data: Data, results: Path, **knobs: Any) -> Callable[[float], Any]:
    """A function from a ratio of FLOPs to a smaller model; what all ratios share is computed once.

    results: where benchmarks/pruning/textpruner.py has written what TextPruner did. knobs: of headcount's own methods.
    """
    if method in ("kwon", "kwon-clip"):
        beyond = "clip" if method == "kwon-clip" else "stop"
        return Kwon(data.model, data.score, typical(data.score), beyond).prune
    if method == "textpruner":
        return partial(textpruner.rebuild, data, results)
    if method in SEARCHES:
        knobs["method"] = method
    return Ours(data, METHODS[method], **knobs).prune


# What each method removes; a method of headcount is a set of units, or another `--method` for both.
METHODS: dict[str, tuple[str, ...]] = {
    "heads": ("heads",),
    "neurons": ("neurons",),
    OURS: ("heads", "neurons"),
    "surgeon": ("heads", "neurons"),
    "joint": ("heads", "neurons"),
    "reconstruction": ("heads", "neurons"),
    "kwon": ("heads", "neurons"),
    "kwon-clip": ("heads", "neurons"),
    "textpruner": ("heads", "neurons"),
}
