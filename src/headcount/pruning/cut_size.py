"""How large a cut to make: the largest whose drop stays within a budget, or the one that was asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from headcount.bench import measure_speed
from headcount.errors import HeadcountError, counted
from headcount.heads import count_units
from headcount.pruning.curve import Point, make_point
from headcount.pruning.search import Cut, CutSearch
from headcount.pruning.search_methods import counts
from headcount.pruning.settings import COST_OF, Pruning
from headcount.pruning.unit_costs import flops_of
from headcount.structure import UNITS
from headcount.surgery import remove
from headcount.tasks import Metric, Task

HALVINGS = 3  # between two steps of a search by cost
COARSE = 0.1  # steps on the way to a given number of heads, for methods that score heads again after each

Chosen = tuple[Cut, tuple[Point, ...]]


def choose_cut(search: CutSearch, select_task: Task) -> Chosen:
    """The cut that the settings ask for, and the cuts that were measured on the selection data."""
    base = search.measure(search.whole, select_task)
    if search.settings.heads is not None:
        return _cut_to_number(search, select_task, base)
    if search.settings.is_sized:
        return _cut_to_size(search, select_task, base)
    return _cut_within_drop(search, select_task, base)


def cut_sizes(settings: Pruning, total: int) -> list[int]:
    """The sizes of the cuts that a search tries, or makes on the way to a given number of heads, out of `total`.

    >>> cut_sizes(Pruning(max_drop=1, step=0.25), 72), cut_sizes(Pruning(heads=20, method="search"), 72)
    ([18, 36, 54, 72], [7, 14, 20])
    """
    if settings.heads is None:
        return counts(total, settings.step)[1:]
    number = settings.head_count(total)
    on_the_way = counts(total, COARSE)[1:] if settings.reestimates else []
    return [*(size for size in on_the_way if size < number), number]


def _cut_within_drop(search: CutSearch, select_task: Task, base: np.ndarray) -> Chosen:
    """The largest cut whose drop on the selection data stays within the budget.

    Tries larger and larger cuts until two in a row are surely beyond it, then bisects between the last good one and
    the next.
    """
    settings, metric = search.settings, select_task.metric
    assert settings.max_drop is not None
    budget = Budget.of(metric, settings.max_drop, float(metric.of(base)))
    found, points = list[Cut](), list[Point]()
    drops, errors = list[float](), list[float]()

    def measure(cut: Cut) -> tuple[float, float]:
        points.append(_point(search, select_task, base, cut))
        return budget.drop(points[-1].score), _standard_error(points[-1])

    def beyond(cut: Cut) -> bool:
        drop, error = measure(cut)
        return not drop + settings.caution * error <= budget.allowed

    for cut in search.cuts(cut_sizes(settings, search.total)):
        found.append(search.without(cut.removed))  # made again if it is chosen: not all of them fit into memory
        drop, error = measure(cut)
        drops.append(drop)
        errors.append(error)
        if surely_beyond(drops, errors, budget.allowed, settings.caution):
            break
    if not found:
        raise HeadcountError("no cut removes the same number of heads from every layer", advice="leave {uniform} out")
    best = largest_within(drops, errors, budget.allowed, settings.caution)
    if best is None:
        likely = believable(drops, errors)
        least = int(likely.argmin())
        within = f"{settings.caution:g} standard errors within" if settings.caution else "within"
        raise HeadcountError(
            f"no cut stays {within} {budget.points:g} points: the smallest drop found is "
            f"{budget.in_points(float(likely[least])):.2f} points, with {count_units(points[least].removed)} removed",
            advice="allow a larger {max_drop}, or recover by fine-tuning",
        )
    chosen = found[best]
    if best + 1 < len(found):
        chosen, _ = bisect(search, chosen, found[best + 1], beyond, HALVINGS)
    return chosen, tuple(sorted(points, key=lambda point: len(point.removed)))


def _cut_to_number(search: CutSearch, select_task: Task, base: np.ndarray) -> Chosen:
    """The cut of a given number of heads."""
    sizes = cut_sizes(search.settings, search.total)
    made = deque(search.cuts(sizes), maxlen=1)
    if not made:
        raise HeadcountError(
            f"removing {counted(sizes[-1], 'head')} cannot take the same number from every layer",
            advice="remove more, or leave {uniform} out",
        )
    return made[0], (_point(search, select_task, base, made[0]),)


def _cut_to_size(search: CutSearch, select_task: Task, base: np.ndarray) -> Chosen:
    """The smallest cut that saves enough parameters, FLOPs or time."""
    saving = Saving(search, select_task)
    saving.refuse_impossible()
    before, found = search.whole, None
    for cut in search.cuts(cut_sizes(search.settings, search.total)):
        if saving.is_enough(cut.model):
            found = search.without(cut.removed)
            break
        before = search.without(cut.removed)
    if found is None:
        raise HeadcountError(f"no cut that was tried is large enough to {search.settings.goal}")

    def is_enough(cut: Cut) -> bool:  # compensation changes neither parameters nor speed
        return saving.is_enough(remove(search.model, cut.removed))

    _, cut = bisect(search, before, found, is_enough, HALVINGS if search.settings.speedup is not None else None)
    return cut, (_point(search, select_task, base, cut),)


def bisect(
    search: CutSearch, inside: Cut, outside: Cut, beyond: Callable[[Cut], bool], halvings: int | None = None
) -> tuple[Cut, Cut]:
    """Two cuts one unit apart, the smaller within a limit and the larger beyond it, from two that are further apart.

    Cuts with the same number of units per layer have nothing between them, nor have cuts that do not hold each other.
    halvings: at most so often where units are compared by cost, of which there can be thousands.
    """
    if search.settings.uniform or not set(inside.removed) <= set(outside.removed):
        return inside, outside
    already = set(inside.removed)
    order = [*inside.removed, *(head for head in outside.removed if head not in already)]
    breaks = [place for place in range(len(already), len(order) + 1) if search.may_end(order, place)]
    low, high, by_cost = 0, len(breaks) - 1, search.settings.by_cost
    while high - low > 1 and not (by_cost and halvings == 0):
        middle = (low + high) // 2
        removed = order[: breaks[middle]]
        cut = search.without(search.costs.rounded(removed) if by_cost else removed)
        if beyond(cut):
            high, outside = middle, cut
        else:
            low, inside = middle, cut
        halvings = None if halvings is None else halvings - 1
    return inside, outside


def _point(search: CutSearch, select_task: Task, base: np.ndarray, cut: Cut) -> Point:
    return make_point(select_task.metric, base, search.measure(cut, select_task), cut.removed, search.share(cut))


def _standard_error(point: Point) -> float:
    """Of the change, from its 95% interval."""
    return (point.change_high - point.change_low) / 3.92


class Saving:
    """What a cut saves of what the settings ask for: parameters, FLOPs or time."""

    def __init__(self, search: CutSearch, task: Task) -> None:
        self.search, self.task = search, task

    def is_enough(self, smaller: Any) -> bool:
        return self._of(smaller) >= self._asked

    def refuse_impossible(self) -> None:
        """Say at once what removing every candidate would save, if that is not enough."""
        search, settings = self.search, self.search.settings
        most = self._of(remove(search.model, search.candidates))
        if most >= self._asked:
            return
        others = [name for name in UNITS[:2] if name not in (settings.units or ())]
        advice = "add " + " and ".join(others) + " to {units}" if others else "lower {" + self._name + "}"
        what = f"the {count_units(search.candidates)} that can be removed"
        if self._name == "speedup":
            message = f"a speedup of {self._asked:g} cannot be reached: {most:.2f} is measured without {what}"
        else:
            part = "parameters" if self._name == "params" else "FLOPs"
            message = f"{self._asked:.1%} of the {part} cannot be saved: {what} hold {most:.1%} of them"
        raise HeadcountError(message, advice=advice)

    @property
    def _name(self) -> str:
        return next(name for name in COST_OF if getattr(self.search.settings, name) is not None)

    @property
    def _asked(self) -> float:
        return float(getattr(self.search.settings, self._name))

    def _of(self, smaller: Any) -> float:
        model = self.search.model
        if self._name == "speedup":
            return measure_speed(model, smaller, self.task).speedup
        if self._name == "flops":
            return 1 - flops_of(smaller, self.task) / self._whole_flops
        before, after = (sum(parameter.numel() for parameter in one.parameters()) for one in (model, smaller))
        return 1 - after / before

    @cached_property
    def _whole_flops(self) -> int:
        return flops_of(self.search.model, self.task)


@dataclass(frozen=True)
class Budget:
    """A drop in points, in the metric's own unit and direction.

    points: hundredths of accuracy, F1 and Matthews, points of BLEU and chrF, percent of perplexity and loss.
    allowed: the same as an amount of this metric, positive. point: one point as such an amount.
    base: the unpruned model's score.
    """

    points: float
    allowed: float
    point: float
    base: float
    higher_is_better: bool

    @classmethod
    def of(cls, metric: Metric, points: float, base: float) -> Budget:
        """The budget of this many points under a metric.

        >>> from headcount.tasks.metrics import CLASSIFICATION, LANGUAGE
        >>> Budget.of(CLASSIFICATION["accuracy"], 0.5, base=0.88).allowed
        0.005
        >>> Budget.of(LANGUAGE["perplexity"], 2, base=50.0).allowed  # two percent, upwards
        1.0
        """
        point = metric.points * (abs(base) if metric.relative and base else 1.0)
        return cls(points, points * point, point, base, metric.higher_is_better)

    def drop(self, score: float) -> float:
        """How much worse than the base a score is, positive for worse."""
        return self.base - score if self.higher_is_better else score - self.base

    def in_points(self, drop: float) -> float:
        """An amount of the metric as points."""
        return drop / self.point


def largest_within(drops: Sequence[float], errors: Sequence[float], allowed: float, caution: float = 0.0) -> int | None:
    """The position of the largest cut that stays within the budget; None if none does.

    >>> largest_within([0.001, 0.004, 0.002, 0.02], [0.01] * 4, allowed=0.005)
    2
    >>> largest_within([0.02, 0.03], [0.01] * 2, allowed=0.005) is None
    True

    Judged one by one, the luckiest of many measurements would be chosen, and its luck does not last. Removing more
    heads cannot really be better, so drops are first made to rise (isotonic regression, weighted by their certainty),
    which lends each the evidence of its neighbours; the drop as measured must be within the budget, too.

    drops, errors: measured drops of growing cuts and their standard errors.
    caution: how many standard errors to stay within the budget.
    """
    good = believable(drops, errors) + caution * np.asarray(errors, float) <= allowed + 1e-12
    return int(np.flatnonzero(good)[-1]) if good.any() else None


def surely_beyond(drops: Sequence[float], errors: Sequence[float], allowed: float, caution: float = 0.0) -> bool:
    """Whether the last two cuts are both two standard errors beyond the budget, so that no larger one will be chosen.

    >>> surely_beyond([0.0, 0.03, 0.03], [0.01] * 3, allowed=0.015), surely_beyond([0.03], [0.01], allowed=0.0)
    (False, False)
    >>> surely_beyond([0.0, 0.03, 0.03], [0.01] * 3, allowed=0.015, caution=1)
    True
    """
    last = list(zip(drops, errors, strict=True))[-2:]
    return len(last) == 2 and all(drop - 2 * error > allowed - caution * error for drop, error in last)


def believable(drops: Sequence[float], errors: Sequence[float]) -> np.ndarray:
    """Drops that are not smaller than what the cuts around them say.

    >>> believable([0.0, 0.3, 0.1, 0.4], [0.1] * 4).round(2).tolist()
    [0.0, 0.3, 0.2, 0.4]
    """
    from sklearn.isotonic import IsotonicRegression  # slow to import

    measured, spread = np.asarray(drops, float), np.maximum(np.asarray(errors, float), 1e-9)
    rising = IsotonicRegression().fit_transform(np.arange(len(measured)), measured, sample_weight=spread**-2.0)
    return np.maximum(rising, measured)
