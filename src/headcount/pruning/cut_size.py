"""How large a cut to make: the largest whose drop stays within a budget, or the one that was asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np

from headcount.bench import measure_speed
from headcount.errors import HeadcountError, counted
from headcount.heads import UNITS, Head, count_units, counts
from headcount.pruning.curve import Point, make_point
from headcount.pruning.search import Cut, CutSearch
from headcount.pruning.search_methods import removable
from headcount.pruning.unit_costs import flops_of
from headcount.settings import COST_OF, Pruning
from headcount.stats import NonInferiority, foreseen, noninferior, planned_looks
from headcount.structure import anatomy, whole_anatomy
from headcount.surgery import remove
from headcount.tasks import Metric, Task

HALVINGS = 3  # between two steps of a search by cost
BETWEEN = 7  # cuts that are tested between two steps of a search within a drop
ERROR = 0.001  # the chance that the rest of the selection data would have changed a test that was foreseen
COARSE = 0.1  # steps on the way to a given number of heads, for methods that score heads again after each

TOO_FEW = "add selection data, allow a larger {max_drop}, or lower {confidence} to 0.5 to go by the measured drop"

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
    """The largest cut that the selection data shows to stay within the budget.

    Larger and larger cuts are tested, and the first that is not shown to stay within it ends the search: a fixed
    sequence, in which every test has the full confidence (Maurer, Hothorn and Lehmacher 1995), since a cut is only
    reached if all smaller ones passed. The cuts between the last that passed and the first that failed are tested the
    same way. As each of the two sequences fails in at most 1 - confidence of cases, the drop of the chosen cut is
    within the budget in at least 90% of cases by default.

    A cut is measured on a part of the data where that leaves no doubt about its test on all of it (a chance of 0.1%).
    The chosen cut has passed the test on all of it.
    """
    trials = Trials(search, select_task, base)
    passed, failed = list[Cut](), None
    for cut in search.cuts(cut_sizes(search.settings, search.total)):
        # Made again if it is chosen, since not all of them fit into memory.
        if not trials.passes(cut):
            failed = search.without(cut.removed)
            break
        passed.append(search.without(cut.removed))
    if not trials.points:
        raise HeadcountError("no cut removes the same number of heads from every layer", advice="leave {uniform} out")
    for cut in [] if failed is None else between(search, passed[-1] if passed else search.whole, failed):
        if not trials.passes(cut):
            break
        passed.append(cut)
    while passed and not trials.passes(passed[-1], on_all=True):  # what was foreseen did not come true
        passed.pop()
    if not passed:
        raise trials.refusal()
    return passed[-1], tuple(sorted(trials.points.values(), key=lambda point: len(point.removed)))


class Trials:
    """Tests of cuts within a drop, each on as much of the selection data, in random order, as it takes to foresee."""

    def __init__(self, search: CutSearch, task: Task, base: np.ndarray) -> None:
        settings = search.settings
        assert settings.max_drop is not None
        self.search, self.task, self.base, self.settings = search, task, base, settings
        self.budget = Budget.of(task.metric, settings.max_drop, float(task.metric.of(base)))
        self.points: dict[frozenset[Head], Point] = {}
        self.looks = planned_looks(len(base)) if settings.early else [len(base)]
        order = np.arange(len(base))
        self.order = np.random.default_rng(settings.seed).permutation(order) if settings.early else order
        self._seen: dict[frozenset[Head], np.ndarray] = {}  # statistics (t, S) of the first t examples of the order

    def passes(self, cut: Cut, on_all: bool = False) -> bool:
        """Whether a cut is shown to stay within the budget on all selection examples, or will be without a doubt."""
        metric, n = self.task.metric, len(self.base)
        error = ERROR / len(self.looks)
        while (seen := len(self._seen.get(frozenset(cut.removed), ()))) < n:
            seen = self._measure_more(cut, seen)
            if seen == n or on_all:
                continue
            base, after = self.base[self.order[:seen]], self._seen[frozenset(cut.removed)]
            better, allowed = metric.higher_is_better, self.budget.allowed
            told = foreseen(
                base, after, metric, allowed,
                examples=n, higher_is_better=better, level=self.settings.confidence, error=error,
            )  # fmt: skip
            if told is not None:
                self._add_point(cut)
                return told
        self._add_point(cut)
        return self._test(cut).shown

    def refusal(self) -> HeadcountError:
        """Why no cut was chosen, by the smallest that was tried."""
        first = min(self.points.values(), key=lambda point: len(point.removed))
        budget, test = self.budget, self._test(first)
        drop, bound = (budget.in_points(budget.drop(budget.base + one)) for one in (test.change, test.bound))
        return HeadcountError(
            f"no cut is shown to stay within {counted(budget.points, 'point')} on {len(self.base):,} selection "
            f"examples: without {count_units(first.removed)}, the drop is {drop:.2f} points, and can be {bound:.2f} "
            f"({self.settings.confidence:.0%} confidence{self._on_a_part(first)})",
            advice=TOO_FEW if self.settings.confidence > 0.5 else "allow a larger {max_drop}",
        )

    def _on_a_part(self, point: Point) -> str:
        return "" if point.examples is None else f", on the first {point.examples:,}, which leave no doubt"

    def _measure_more(self, cut: Cut, seen: int) -> int:
        """Measure a cut on the examples up to the next look."""
        size = next(look for look in self.looks if look > seen)
        if seen == 0 and size == len(self.base):
            found = self.search.measure(cut, self.task)[self.order]
        else:
            part = self.task.subset(self.order[seen:size].tolist())
            found = self.search.measure(cut, part, f"-{size:06d}")
        before = self._seen.get(frozenset(cut.removed))
        self._seen[frozenset(cut.removed)] = found if before is None else np.concatenate([before, found])
        return size

    def _both(self, cut: Cut | Point) -> tuple[np.ndarray, np.ndarray]:
        """Statistics (t, S) of the whole model and of a cut on the examples that it has seen, in the data's order."""
        after = self._seen[frozenset(cut.removed)]
        places = self.order[: len(after)]
        sorted_places = np.argsort(places)
        return self.base[places][sorted_places], after[sorted_places]

    def _test(self, cut: Cut | Point) -> NonInferiority:
        return self.budget.test(self.task.metric, *self._both(cut), self.settings.confidence)

    def _add_point(self, cut: Cut) -> None:
        base, after = self._both(cut)
        point = make_point(self.task.metric, base, after, cut.removed, self.search.share(cut))
        if len(after) < len(self.base):
            score, shift = self.budget.base + point.change, self.budget.base + point.change - point.score
            point = replace(
                point,
                score=score,
                low=point.low + shift,
                high=point.high + shift,
                relative=score / self.budget.base if self.budget.base else point.relative,
                examples=len(after),
            )
        self.points[frozenset(cut.removed)] = point


def between(search: CutSearch, inside: Cut, outside: Cut) -> list[Cut]:
    """Growing cuts between two, at most `BETWEEN` of them.

    Cuts with equally many units per layer have nothing between them, nor have cuts that do not hold each other.
    """
    order, breaks = _breaks(search, inside, outside)
    places = breaks[1:-1]
    if len(places) > BETWEEN:
        places = [places[round(i * (len(places) + 1) / (BETWEEN + 1)) - 1] for i in range(1, BETWEEN + 1)]
    return [_cut_at(search, order, place) for place in places]


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
    cut = _without_excess(search, cut, is_enough)
    return cut, (_point(search, select_task, base, cut),)


def bisect(
    search: CutSearch, inside: Cut, outside: Cut, beyond: Callable[[Cut], bool], halvings: int | None = None
) -> tuple[Cut, Cut]:
    """Two cuts one unit apart, the smaller within a limit and the larger beyond it, from two that are further apart.

    halvings: at most so often where units are compared by cost, of which there can be thousands.
    """
    order, breaks = _breaks(search, inside, outside)
    low, high, by_cost = 0, len(breaks) - 1, search.settings.by_cost
    while high - low > 1 and not (by_cost and halvings == 0):
        middle = (low + high) // 2
        cut = _cut_at(search, order, breaks[middle])
        if beyond(cut):
            high, outside = middle, cut
        else:
            low, inside = middle, cut
        halvings = None if halvings is None else halvings - 1
    return inside, outside


def _without_excess(search: CutSearch, cut: Cut, is_enough: Callable[[Cut], bool]) -> Cut:
    """The cut, but for sublayers that it need not remove; the one that goes last, as the dearest, is put back first.

    Of units as large as sublayers, the last one can save far more than is missing, and make an earlier one needless.
    """
    if "sublayers" not in (search.settings.units or ()):
        return cut
    for site in dict.fromkeys(head.site for head in reversed(cut.removed)):
        rest = [head for head in cut.removed if head.site != site]
        whole = len(cut.removed) - len(rest) == len(search.found.site(site).heads)
        if whole and rest and is_enough(fewer := search.without(rest)):
            cut = fewer
    return cut


def _breaks(search: CutSearch, inside: Cut, outside: Cut) -> tuple[list[Head], list[int]]:
    """The units of the larger cut, those of the smaller first, and the places from one to the other to cut at."""
    if search.settings.uniform or not set(inside.removed) <= set(outside.removed):
        return [], []
    already = set(inside.removed)
    order = [*inside.removed, *(head for head in outside.removed if head not in already)]
    return order, [place for place in range(len(already), len(order) + 1) if search.may_end(order, place)]


def _cut_at(search: CutSearch, order: list[Head], place: int) -> Cut:
    return search.without(search.costs.rounded(order[:place]) if search.settings.by_cost else order[:place])


def _point(search: CutSearch, select_task: Task, base: np.ndarray, cut: Cut) -> Point:
    return make_point(select_task.metric, base, search.measure(cut, select_task), cut.removed, search.share(cut))


class Saving:
    """What a cut saves of what the settings ask for: parameters, FLOPs or time."""

    def __init__(self, search: CutSearch, task: Task) -> None:
        self.search, self.task = search, task

    def is_enough(self, smaller: Any) -> bool:
        return self._of(smaller) >= self._asked

    def refuse_impossible(self) -> None:
        """Say at once what removing every candidate would save, if that is not enough."""
        search = self.search
        emptied = remove(search.model, search.candidates)
        most = measure_speed(search.model, emptied, self.task).high if self._name == "speedup" else self._of(emptied)
        if most >= self._asked:
            return
        advice = self._what_would_reach_it()
        what = f"the {count_units(search.candidates)} that can be removed"
        if self._name == "speedup":
            message = f"a speedup of {self._asked:g} cannot be reached: at most {most:.2f} is measured without {what}"
        else:
            part = "parameters" if self._name == "params" else "FLOPs"
            message = f"{self._asked:.1%} of the {part} cannot be saved: {what} hold {most:.1%} of them"
        raise HeadcountError(message, advice=advice)

    def _what_would_reach_it(self) -> str:
        """Which other settings allow to remove enough; that the goal must be lower, if none do."""
        model, settings = self.search.model, self.search.settings
        units = settings.units or ()
        missing = [one for one in UNITS[:2] if one not in units and "sublayers" not in units]
        wider: list[tuple[str, dict[str, Any]]] = []
        if settings.kinds is not None:
            wider.append(("leave {kinds} out", {"kinds": None}))
        if settings.keep_at_least:
            wider.append(("lower {keep_at_least}", {"keep_at_least": 0}))
        if missing and not whole_anatomy(model).unknown:
            wider.append((f"add {' and '.join(missing)} to {{units}}", {"units": (*units, *missing)}))
        for number in range(1, len(wider) + 1):
            for some in combinations(wider, number):
                other = replace(settings, **{name: value for _, changes in some for name, value in changes.items()})
                heads = anatomy(model, other.units or "heads").heads_of(other.kinds)
                if self._of(remove(model, removable(heads, other.keep_at_least))) >= self._asked:
                    return " and ".join(words for words, _ in some)
        return "lower {" + self._name + "}"

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

    def test(self, metric: Metric, base: np.ndarray, after: np.ndarray, confidence: float = 0.95) -> NonInferiority:
        """Whether statistics (N, S) before and after a cut show that its drop is within the budget."""
        better = self.higher_is_better
        return noninferior(base, after, metric, self.allowed, higher_is_better=better, level=confidence)


def in_unit(number: str, metric: Metric) -> str:
    """Points in words: `2%` of a perplexity, `1 point` or `2 points` of anything else."""
    return f"{number}{'%' if metric.relative else ' point' if number == '1' else ' points'}"
