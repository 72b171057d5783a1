"""`CutSearch`: from the whole model to cuts with fewer and fewer units, each choice kept so that it can resume."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from torch import nn

from headcount.engine import Progress
from headcount.evaluation import evaluate
from headcount.heads import Head
from headcount.pruning.calibration import Calibration
from headcount.pruning.compensation import Unexplained, columns_of, compensate, unexplained
from headcount.pruning.search_methods import (
    PICKERS,
    Elimination,
    Interactions,
    OneByOne,
    candidates_of,
    cheapest_by_cost,
    equally_many,
    in_groups,
    most_important,
    pick_groups,
    removable,
)
from headcount.pruning.unit_costs import CostTable, cost_table
from headcount.runs import RunDirectory
from headcount.scoring import head_gradients, unit_moments
from headcount.settings import SEARCHES, Pruning
from headcount.structure import anatomy, whole_anatomy
from headcount.surgery import remove
from headcount.tasks import Task

THOUSANDTHS = 1000


@dataclass(frozen=True, eq=False)
class Cut:
    """Units to remove, and the compensated model without them, which is made when it is first asked for."""

    removed: tuple[Head, ...]
    make: Callable[[], nn.Module]

    @cached_property
    def model(self) -> nn.Module:
        return self.make()


class CutSearch:
    """One search for units to remove: the model, the data that scores them, the settings, and what was found so far.

    candidates: the heads and neurons that the settings allow to remove.
    total: the size of the largest cut: how many heads there are to remove, or, where units are compared by cost, 1000,
        and the size of a cut is a share of the cost of all candidates in thousandths.
    calibration: what `Calibration(model, score_task)` has recorded already, to use it for several searches.
    run: an open run directory; choices and measurements that it holds are not computed again.
    """

    def __init__(
        self,
        model: nn.Module,
        score_task: Task,
        settings: Pruning,
        *,
        calibration: Calibration | None = None,
        run: RunDirectory | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.model, self.score_task, self.settings, self.progress = model, score_task, settings, progress
        self.found = anatomy(model, settings.units or "heads")
        self.heads = self.found.heads
        self.candidates = removable(self.found.heads_of(settings.kinds), settings.keep_at_least)
        self.total = THOUSANDTHS if settings.by_cost else len(self.candidates)
        self.kept = SearchCheckpoint(run)
        self.whole = Cut((), lambda: model)
        if settings.compensation != "none" and calibration is None:
            calibration = Calibration(model, score_task, seed=settings.seed)
        self.calibration = calibration
        self._scored: tuple[np.ndarray, list[Head]] | None = None  # gradients (examples, heads) of these heads
        self._losses: dict[Head | str, float] | None = None  # expected, of each unit

    @cached_property
    def costs(self) -> CostTable:
        """What the candidates cost; measured, if time is the cost, when it is first asked for."""
        assert self.settings.cost is not None
        sites = self.found.sites_of(self.settings.kinds)
        return cost_table(self.model, sites, self.settings.cost, self.score_task, self.kept.run)

    def cuts(self, numbers: Sequence[int]) -> Iterator[Cut]:
        """Cuts of these growing sizes, each holding the one before it; the caller stops when it has seen enough.

        With `uniform`, the closest smaller size takes the place of one that cannot be had, and no size comes twice.
        """
        last = self.whole
        for number in numbers:
            choose = self._choose_by_cost if self.settings.by_cost else self._choose
            removed = self.kept.choice(number, self.heads, last.removed, partial(choose, number, last))
            is_larger = len(removed) > len(last.removed)
            last = self.without(removed)
            if is_larger:
                yield last
            if self.progress is not None:
                self.progress(number / max(1, self.total))

    def without(self, removed: Sequence[Head], compensation: str | None = None) -> Cut:
        """The cut that removes these units and compensates for them."""
        how = compensation or self.settings.compensation

        def make() -> nn.Module:
            smaller = remove(self.model, removed)
            return compensate(smaller, self.model, self.score_task, how, calibration=self.calibration)

        return Cut(tuple(removed), make)

    def may_end(self, order: Sequence[Head], place: int) -> bool:
        """Whether a cut can end here in an order: not inside of a sublayer or group that only goes as a whole."""
        if place in (0, len(order)) or order[place].site != order[place - 1].site:
            return True
        size = self.found.site(order[place].site).layout.group
        if self.settings.groups == "whole" and order[place].index // size == order[place - 1].index // size:
            return False
        return ("neurons" if order[place].is_neuron else "heads") in (self.settings.units or ())

    def share(self, cut: Cut) -> float:
        """How much of what can be removed a cut removes: by cost, or by number of heads."""
        if not self.settings.by_cost:
            return len(cut.removed) / self.total
        gone = Counter(head.site for head in cut.removed)
        curves = self.costs.curves
        return self.costs.saved({name: len(curves[name]) - 1 - gone[name] for name in gone}) / self.costs.total

    def measure(self, cut: Cut, task: Task, part: str = "") -> np.ndarray:
        """(N, S) the statistics of a cut on a task; part: names a part of the selection data."""
        return self.kept.statistics(cut.removed, len(task), lambda: evaluate(cut.model, task).of(), part)

    def _choose(self, number: int, last: Cut) -> list[Head]:
        """`number` heads to remove, those of the last cut among them.

        All heads that were scored enter the choice, removed ones included, so that an order stays the same order.
        """
        settings, method = self.settings, SEARCHES[self.settings.method]
        pick = PICKERS[method.pick]
        if self._scored is None or method.reestimated:
            cut = last if method.reestimated else self.whole  # the last cut can be one from before an interruption
            if settings.compensation != "none" and not method.compensated:
                cut = self.without(cut.removed, "none")
            self._scored = head_gradients(cut.model, self.score_task), list(anatomy(cut.model).heads)
        gradients, heads = self._scored
        before, kinds = set(last.removed), settings.kinds
        candidates = np.array([head not in before and (kinds is None or head.kind in kinds) for head in heads])
        count = number - len(before)
        if settings.uniform:
            more = equally_many(anatomy(self.model), heads, gradients, count, candidates)
        elif settings.groups == "whole":
            groups = in_groups(self.found, heads)
            picked = pick_groups(pick, groups, gradients, heads, count, candidates, settings.keep_at_least)
            more = [heads[place] for place in picked]
        else:
            if settings.keep_at_least:
                candidates &= ~most_important(gradients, heads, settings.keep_at_least)
            picked = pick(gradients, heads, min(count, int(candidates.sum())), candidates)
            more = [heads[place] for place in picked]
        return [*last.removed, *more]

    def _choose_by_cost(self, number: int, last: Cut) -> list[Head]:
        """Units that save `number` thousandths of the cost together, those of the last cut among them."""
        settings, method = self.settings, SEARCHES[self.settings.method]
        goal = number / THOUSANDTHS * self.costs.total
        units, one_by_one = settings.units or "heads", dict[str, OneByOne]()
        if self._losses is None or method.reestimated:
            cut = last if method.reestimated else self.whole
            if settings.compensation != "none" and not method.compensated:
                cut = self.without(cut.removed, "none")
            self._losses, one_by_one = self.expected_losses(cut.model)
        now = anatomy(remove(self.model, last.removed), units)
        widths = {site.name: len(site.kept) for site in now.sites if site.name in self.costs.curves}
        candidates = candidates_of(
            now,
            self._losses,
            self.costs.curves,
            uniform=settings.uniform,
            keep_at_least=settings.keep_at_least,
            groups=settings.groups,
        )
        more = cheapest_by_cost(candidates, self.costs, widths, goal, one_by_one)
        return self.costs.rounded([*last.removed, *more])

    def expected_losses(self, model: nn.Module) -> tuple[dict[Head | str, float], dict[str, OneByOne]]:
        """Of each unit of a cut model; and by site, how they change as more units go, if the method says that."""
        settings, method = self.settings, SEARCHES[self.settings.method]
        units = settings.units or "heads"
        residuals: dict[str, Unexplained] | None = None
        if method.unexplained and settings.compensation == "refit" and self.calibration is not None:
            residuals = unexplained(model, self.calibration)
        if method.loss == "reconstruction":
            assert residuals is not None
            losses = self._reconstruction(model, residuals)
        elif method.within == "interactions":
            found = anatomy(model, units)
            gradients = head_gradients(model, self.score_task, units=units, residuals=residuals)  # (examples, units)
            losses = dict(zip(found.units, np.square(gradients, dtype=np.float64).mean(0).tolist(), strict=True))
            of_unit = dict(zip(found.units, gradients.T, strict=True))
            return losses, {
                site.name: Interactions(np.stack([of_unit[head] for head in site.heads], axis=1), site.kept)
                for site in found.sites
                if site.kept and site.heads[0] in of_unit
            }
        else:
            moments = unit_moments(model, self.score_task, units, residuals=residuals)
            losses = dict(zip(moments.units, getattr(moments, method.loss).tolist(), strict=True))
        if residuals is None or method.within != "elimination":
            return losses, {}
        kept = {site.name: site.kept for site in whole_anatomy(model).sites}
        return losses, {name: Elimination(found, kept[name]) for name, found in residuals.items()}

    def _reconstruction(self, model: nn.Module, residuals: dict[str, Unexplained]) -> dict[Head | str, float]:
        """What each site loses of what it passes on, as a share of its squares, without gradients."""
        assert self.calibration is not None
        losses: dict[Head | str, float] = {}
        for site in anatomy(model, ("heads", "neurons")).sites:
            if site.name in residuals:
                passed_on = sum(float(targets[site.name].square().sum()) for targets in self.calibration.targets)
                alone, whole = residuals[site.name].lost(columns_of(site))
                losses |= dict(zip(site.heads, (alone / passed_on).tolist(), strict=True))
                losses[site.name] = whole / passed_on
        return {unit: losses[unit] for unit in anatomy(model, self.settings.units or "heads").units if unit in losses}


class SearchCheckpoint:
    """The choices and measurements of a search, kept in its run directory; without one, nothing is kept.

    >>> kept, heads = SearchCheckpoint(None), [Head("encoder", 0, 0), Head("encoder", 0, 1)]
    >>> [str(head) for head in kept.choice(1, heads, (), lambda: heads[1:])]
    ['encoder.0.1']

    name: of this search's choices, where one run directory holds several searches.
    """

    def __init__(self, run: RunDirectory | None, name: str = "choice") -> None:
        self.run, self.name = run, name

    def choice(
        self, number: int, heads: Sequence[Head], before: Sequence[Head], choose: Callable[[], list[Head]]
    ) -> list[Head]:
        """The choice of this size among these heads, those that were removed before first, as kept or chosen now."""
        shard = f"{self.name}-{number:05d}"
        kept = self.run.load_shard(shard) if self.run else None
        places = None if kept is None else kept.get("removed")
        if places is not None and _is_choice(places, len(heads)):
            chosen = [heads[place] for place in places]
            if chosen[: len(before)] == list(before):
                return chosen
        chosen = choose()
        if self.run:
            place = {head: place for place, head in enumerate(heads)}
            self.run.save_shard(shard, {"removed": np.array([place[head] for head in chosen], np.int64)})
        return chosen

    def statistics(
        self, removed: Sequence[Head], examples: int, measure: Callable[[], np.ndarray], part: str = ""
    ) -> np.ndarray:
        """(N, S) the statistics of the model without these heads, as kept or measured now."""
        shard = f"{cut_name(removed)}{part}"
        kept = self.run.load_shard(shard) if self.run else None
        found = None if kept is None else kept.get("statistics")
        if found is not None and found.ndim == 2 and len(found) == examples and np.isfinite(found).all():
            return found
        measured = measure()
        if self.run:
            self.run.save_shard(shard, {"statistics": np.ascontiguousarray(measured)})
        return measured


def cut_name(removed: Sequence[Head]) -> str:
    """The name of a cut's shards: the same for the same heads, in whatever order.

    >>> cut_name([Head("encoder", 0, 1)])
    'cut-00001-1baf7a51147056a1'
    """
    names = " ".join(str(head) for head in sorted(removed))
    return f"cut-{len(removed):05d}-{hashlib.sha256(names.encode()).hexdigest()[:16]}"


def _is_choice(places: np.ndarray, heads: int) -> bool:
    """Whether a shard holds a choice of some of this many heads."""
    if places.ndim != 1 or places.dtype != np.int64:
        return False
    return len(set(places.tolist())) == len(places) and all(0 <= place < heads for place in places)
