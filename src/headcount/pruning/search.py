"""Ways to find which heads can go: each walks from the whole model to fewer and fewer heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from torch import nn

from headcount.anatomy import anatomy
from headcount.errors import HeadcountError, unknown
from headcount.heads import Head
from headcount.importance.gradient import head_gradients
from headcount.importance.scores import normalized
from headcount.pruning.calibration import Calibration
from headcount.pruning.compensate import HOW, compensate
from headcount.pruning.interactions import choose_together
from headcount.pruning.journal import Journal
from headcount.pruning.uniform import uniform_units
from headcount.surgery import remove
from headcount.tasks import Task

Picker = Callable[[np.ndarray, Sequence[Head], int, "np.ndarray"], list[int]]


@dataclass(frozen=True)
class Search:
    """A way to choose heads.

    pick: from signed gradients (examples, heads), the heads, a number and which may go: which ones go, by position.
    again: estimate the gradients again, in the pruned model, after each step.
    mended: ... in the pruned and compensated model, which is what will be used in the end.
    """

    pick: Picker
    again: bool
    mended: bool
    about: str


def by_importance(gradients: np.ndarray, heads: Sequence[Head], count: int, may: np.ndarray) -> list[int]:
    """M19: the least E_x |g_h|, normalised per layer and kind."""
    scores = normalized(tuple(heads), np.abs(gradients).mean(0, dtype=np.float64))
    return _lowest(scores, count, may)


def by_fisher(gradients: np.ndarray, heads: Sequence[Head], count: int, may: np.ndarray) -> list[int]:
    """The least E_x g_h^2: interactions left out."""
    return _lowest((gradients.astype(np.float64) ** 2).mean(0), count, may)


def together(gradients: np.ndarray, heads: Sequence[Head], count: int, may: np.ndarray) -> list[int]:
    """The set that costs least together, by Fisher interactions and swaps."""
    return choose_together(gradients, count, may.tolist())


SEARCHES = {
    "michel": Search(by_importance, False, False, "M19: importance once, in one order"),
    "reestimated": Search(by_importance, True, False, "M19's importance, estimated again after each step"),
    "fisher": Search(by_fisher, False, False, "squared gradients once, in one order"),
    "interactions": Search(together, True, False, "sets chosen by Fisher interactions and swaps, estimated again"),
    "search": Search(together, True, True, "Fisher interactions and swaps, estimated again in the compensated model"),
}
DEFAULT = "search"


@dataclass(frozen=True, eq=False)
class Cut:
    """Some heads that go, and the compensated model without them, made when it is first asked for."""

    removed: tuple[Head, ...]
    make: Callable[[], nn.Module]

    @cached_property
    def model(self) -> nn.Module:
        return self.make()


def cuts(
    model: nn.Module,
    score_task: Task,
    numbers: Sequence[int],
    *,
    method: str = DEFAULT,
    how: str = "refit",
    kinds: Sequence[str] | None = None,
    keep_at_least: int = 0,
    uniform: bool = False,
    calibration: Calibration | None = None,
    journal: Journal | None = None,
) -> Iterator[Cut]:
    """Models with so many heads gone, one after the other; the caller stops when it has seen enough.

    numbers: growing numbers of heads to remove. method: one of `SEARCHES`. how: the compensation.
    journal: what was chosen before an interruption; that is not computed again.
    """
    if method not in SEARCHES:
        raise HeadcountError(unknown("pruning method", method, SEARCHES))
    if how not in HOW:
        raise HeadcountError(unknown("compensation", how, HOW))
    search = SEARCHES[method]
    if how != "none" and calibration is None:
        calibration = Calibration(model, score_task)
    journal = journal or Journal(None)
    heads = anatomy(model).heads
    scored: tuple[np.ndarray, list[Head]] | None = None
    removed: list[Head] = []
    last = Cut((), lambda: model)

    def make(gone: Sequence[Head], mend: str = how) -> nn.Module:
        return compensate(remove(model, gone), model, score_task, mend, calibration=calibration)

    def choose(number: int) -> list[Head]:
        nonlocal scored
        if scored is None or search.again:
            current = last.model if search.mended or how == "none" else make(last.removed, "none")
            scored = head_gradients(current, score_task), list(anatomy(current).heads)
        gradients, order = scored
        may = np.array([head not in removed and (kinds is None or head.kind in kinds) for head in order])
        more = _choose(search, gradients, order, number - len(removed), may, model, keep_at_least, uniform)
        return [*removed, *more]

    for number in numbers:
        removed = journal.choice(number, heads, partial(choose, number))
        last = Cut(tuple(removed), partial(make, tuple(removed)))
        yield last


def _choose(
    search: Search,
    gradients: np.ndarray,
    heads: list[Head],
    count: int,
    may: np.ndarray,
    model: nn.Module,
    keep_at_least: int,
    uniform: bool,
) -> list[Head]:
    """`count` more heads to remove; all heads that were scored are given, so that an order stays the same order."""
    if uniform:
        scores = normalized(tuple(heads), np.abs(gradients).mean(0, dtype=np.float64))
        return uniform_units(anatomy(model), heads, scores, count, may)
    if keep_at_least:
        may = may & ~_protected(heads, np.abs(gradients).mean(0), keep_at_least)
    return [heads[i] for i in search.pick(gradients, heads, min(count, int(may.sum())), may)]


def _protected(heads: list[Head], scores: np.ndarray, keep: int) -> np.ndarray:
    """(heads,) the `keep` most important heads of every site."""
    best: dict[str, list[int]] = {}
    for place in np.argsort(-scores, kind="stable"):
        best.setdefault(heads[place].site, []).append(int(place))
    chosen = np.zeros(len(heads), bool)
    chosen[[place for places in best.values() for place in places[:keep]]] = True
    return chosen


def _lowest(scores: np.ndarray, count: int, may: np.ndarray) -> list[int]:
    order = np.argsort(np.where(may, scores, np.inf), kind="stable")
    return [int(i) for i in order[: min(count, int(may.sum()))]]
