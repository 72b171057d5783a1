"""The methods: each makes a smaller model with a given number of FLOPs, from a model and training data alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.pruning import textpruner
from benchmarks.pruning.data import Data, typical
from benchmarks.pruning.kwon import Kwon
from headcount.errors import HeadcountError
from headcount.heads import Head
from headcount.pruning import Pruning
from headcount.pruning.calibration import Calibration
from headcount.pruning.compensation import Elimination, unexplained
from headcount.pruning.cut_size import bisect, cut_sizes
from headcount.pruning.search import THOUSANDTHS, Cut, CutSearch
from headcount.pruning.unit_costs import flops_of
from headcount.scoring import head_gradients
from headcount.structure import anatomy, is_transposed, whole_anatomy
from headcount.surgery import remove

OURS = "ours"
BASELINES = ("kwon", "kwon-clip", "textpruner")


class Reconstruction(CutSearch):
    """The same search by ZipLM's criterion (Kurtic et al. 2023), without gradients: how much of what a site passes on,
    as a share of its squares, is lost with a unit although the others have been refitted."""

    def expected_losses(self, model: nn.Module) -> tuple[dict[Head | str, float], dict[str, Elimination]]:
        seen = self.calibration
        assert seen is not None
        losses: dict[Head | str, float] = {}
        eliminations = {}
        sites = {site.name: site for site in whole_anatomy(model).sites}
        for name, found in unexplained(model, seen).items():
            site = sites[name]
            passed_on = sum(float(targets[name].square().sum()) for targets in seen.targets)
            weight = site.output.weight.T if is_transposed(site.output) else site.output.weight  # (d, k)
            by_unit = found.matrix.unflatten(1, (-1, site.width)).transpose(0, 1).double()  # (units, k, width)
            left = torch.linalg.inv(found.own) - found.penalty * by_unit.mT @ by_unit  # of G: see `_left_over`
            columns = weight.detach().double().unflatten(1, (-1, site.width)).transpose(0, 1)  # (units, d, width)
            lost = (columns @ left * columns).sum((1, 2)) / passed_on
            losses |= dict(zip(site.heads, lost.tolist(), strict=True))
            eliminations[name] = Elimination(found, site.kept)
        return losses, eliminations


class Interactions(CutSearch):
    """The same search, with Fisher interactions inside a site.

    With g_u(x) the gradient of what a refit cannot reproduce of unit u, removing u after the set S of its site raises
    the loss by 1/2 E[g_u^2] + sum_{v in S} E[g_u g_v]. A step removes one unit after another, each with the smallest
    rise per cost.
    """

    def _choose_by_cost(self, number: int, last: Cut) -> list[Head]:
        model, task, units = last.model, self.score_task, self.settings.units or "heads"
        assert self.calibration is not None
        gradients = head_gradients(model, task, units=units, residuals=unexplained(model, self.calibration))
        found, goal = anatomy(model, units), number / THOUSANDTHS * self.costs.total
        sites = [site for site in found.sites if site.kept]
        left = {site.name: len(site.kept) for site in found.sites}
        columns = dict(zip(left, np.split(gradients, np.cumsum(list(left.values()))[:-1], axis=1), strict=True))
        each = {site.name: self.costs.per_unit(site.name, left[site.name]) for site in sites}
        rise = {name: 0.5 * np.square(columns[name], dtype=np.float64).mean(0) for name in each}
        chosen: list[Head] = []
        while self.costs.saved(left) < goal:
            best = min(sites, key=lambda site: rise[site.name].min() / each[site.name])
            place = int(rise[best.name].argmin())
            chosen.append(best.heads[place])
            rise[best.name] += columns[best.name].T @ columns[best.name][:, place] / len(gradients)
            rise[best.name][place] = np.inf
            left[best.name] -= 1
        return self.costs.rounded([*last.removed, *chosen])


class Ours:
    """headcount, by units of these kinds: what `prune` does for a share of the FLOPs, in one search for all ratios.

    Units are scored on as many examples as `prune` takes by default; all of the data is there for calibration.

    knobs: fields of `Pruning`, such as the method.
    """

    def __init__(self, data: Data, units: tuple[str, ...], search: type[CutSearch] = CutSearch, **knobs: Any) -> None:
        self.data, self.before = data, flops_of(data.model, data.score)
        settings = Pruning(flops=0.99, units=units, **knobs)
        scored = data.score.subset(range(min(len(data.score), settings.score_examples)))
        calibration = Calibration(data.model, data.score)
        self.search = search(data.model, scored, settings, calibration=calibration)
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
    if method in ("surgeon", "ziplm"):
        search = Reconstruction if method == "ziplm" else CutSearch
        return Ours(data, METHODS[method], search, method="surgeon", **knobs).prune
    if method == "interactions":
        return Ours(data, METHODS[method], Interactions, **knobs).prune
    return Ours(data, METHODS[method], **knobs).prune


# What each method removes; a method of headcount is a set of units.
METHODS: dict[str, tuple[str, ...]] = {
    "heads": ("heads",),
    "neurons": ("neurons",),
    OURS: ("heads", "neurons"),
    "surgeon": ("heads", "neurons"),
    "ziplm": ("heads", "neurons"),
    "interactions": ("heads", "neurons"),
    "kwon": ("heads", "neurons"),
    "kwon-clip": ("heads", "neurons"),
    "textpruner": ("heads", "neurons"),
}
