"""Ways to find which heads can go: each walks from the whole model to fewer and fewer heads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from torch import nn

from headcount.errors import HeadcountError, unknown
from headcount.heads import Head
from headcount.pruning.calibration import Calibration
from headcount.pruning.compensation import HOW, compensate
from headcount.runs import RunDirectory
from headcount.scoring import head_gradients, normalized
from headcount.structure import Anatomy, anatomy
from headcount.surgery import remove
from headcount.tasks import Task

DEFAULT = "search"


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


def choose_together(gradients: np.ndarray, count: int, allowed: Sequence[bool] | None = None) -> list[int]:
    """The `count` heads whose removal, all together, is expected to cost the least: greedily, then by swaps.

    >>> twins = np.array([[1.0, 1.0, 1.2], [1.0, 1.0, -1.2]])  # heads 0 and 1 pull the same way, 2 another
    >>> sorted(choose_together(twins, 2))
    [0, 2]

    gradients: (examples, heads), signed. allowed: which heads may go; all by default.
    """
    gradients = np.asarray(gradients, np.float64)
    fisher = gradients.T @ gradients / len(gradients)  # (H, H)
    single = 0.5 * fisher.diagonal()
    may = np.ones(len(fisher), bool) if allowed is None else np.asarray(allowed, bool)
    chosen = np.zeros(len(fisher), bool)
    together = np.zeros(len(fisher))  # F 1_S
    for _ in range(min(count, int(may.sum()))):
        cost = np.where(may & ~chosen, single + together, np.inf)
        best = int(cost.argmin())
        chosen[best] = True
        together += fisher[best]
    return _swap(fisher, single, chosen, together, may)


def _swap(
    fisher: np.ndarray, single: np.ndarray, chosen: np.ndarray, together: np.ndarray, may: np.ndarray
) -> list[int]:
    """Exchange the pair of heads that lowers the cost most, until none does."""
    for _ in range(10 * len(fisher)):
        inside, outside = np.flatnonzero(chosen), np.flatnonzero(may & ~chosen)
        if not len(inside) or not len(outside):
            break
        back = single[inside] - together[inside]  # (I,) cost of taking a head back
        out = single[outside] + together[outside]  # (O,) cost of removing another one
        change = back[:, None] + out[None] - fisher[np.ix_(inside, outside)]  # (I, O)
        one, other = np.unravel_index(change.argmin(), change.shape)
        if change[one, other] >= -1e-12 * max(1.0, single.max()):
            break
        chosen[inside[one]], chosen[outside[other]] = False, True
        together += fisher[outside[other]] - fisher[inside[one]]
    inside = np.flatnonzero(chosen)
    return [int(i) for i in inside[np.argsort(single[inside], kind="stable")]]


def uniform_units(found: Anatomy, heads: Sequence[Head], scores: np.ndarray, count: int, may: np.ndarray) -> list[Head]:
    """At most `count` heads to remove, equally many at every site: the least important ones of each.

    Heads that share a key-value head go together, and where layers share a position bias (T5) the same ones go in all
    layers of a kind: a stock configuration cannot say anything else.

    scores: (heads,) normalised per site. may: which heads may go at all.
    """
    score = {head: value for head, value, free in zip(heads, scores.tolist(), may.tolist(), strict=True) if free}
    sites = [site for site in found.sites if any(head in score for head in site.heads)]
    units: dict[str, list[tuple[float, list[Head]]]] = {}
    for site in sites:
        groups: dict[int, list[Head]] = {}
        for head in site.heads:
            if head in score:
                groups.setdefault(head.index // site.group, []).append(head)
        units[site.name] = [(sum(score[head] for head in group), group) for group in groups.values()]
    if any(site.shared for site in sites):
        _same_everywhere(units)
    rounds = min((len(groups) for groups in units.values()), default=0)
    chosen: list[Head] = []
    for place in range(rounds):
        more = [head for groups in units.values() for head in sorted(groups, key=lambda unit: unit[0])[place][1]]
        if len(chosen) + len(more) > count:
            break
        chosen += more
    return chosen


def _same_everywhere(units: dict[str, list[tuple[float, list[Head]]]]) -> None:
    """Give a head the mean score of its index over the layers of its kind."""
    total: dict[tuple[str, int], list[float]] = {}
    for groups in units.values():
        for value, group in groups:
            total.setdefault((group[0].kind, group[0].index), []).append(value)
    for groups in units.values():
        groups[:] = [(float(np.mean(total[group[0].kind, group[0].index])), group) for _, group in groups]


class Journal:
    """Chosen heads and measured statistics of a search; without a run directory nothing is kept.

    >>> journal, heads = Journal(None), [Head("encoder", 0, 0), Head("encoder", 0, 1)]
    >>> [str(head) for head in journal.choice(1, heads, lambda: heads[1:])]
    ['encoder.0.1']
    """

    def __init__(self, run: RunDirectory | None) -> None:
        self.run = run

    def choice(self, number: int, heads: Sequence[Head], choose: Callable[[], list[Head]]) -> list[Head]:
        """The first `number` heads to go, of these, as chosen before or now."""
        name = f"choice-{number:05d}"
        kept = self.run.load_shard(name) if self.run else None
        places = None if kept is None else kept.get("removed")
        if places is not None and _is_choice(places, number, len(heads)):
            return [heads[place] for place in places]
        chosen = choose()
        if self.run:
            self.run.save_shard(name, {"removed": np.array([heads.index(head) for head in chosen], np.int64)})
        return chosen

    def statistics(self, removed: Sequence[Head], examples: int, measure: Callable[[], np.ndarray]) -> np.ndarray:
        """(N, S) the statistics of the model without these heads, as measured before or now."""
        names = " ".join(str(head) for head in sorted(removed))
        name = f"cut-{len(removed):05d}-{hashlib.sha256(names.encode()).hexdigest()[:16]}"
        kept = self.run.load_shard(name) if self.run else None
        found = None if kept is None else kept.get("statistics")
        if found is not None and found.ndim == 2 and len(found) == examples and np.isfinite(found).all():
            return found
        measured = measure()
        if self.run:
            self.run.save_shard(name, {"statistics": np.ascontiguousarray(measured)})
        return measured


def _is_choice(places: np.ndarray, number: int, heads: int) -> bool:
    """Whether a shard holds a choice of at most `number` of so many heads."""
    if places.ndim != 1 or places.dtype != np.int64 or len(places) > number:
        return False
    return len(set(places.tolist())) == len(places) and all(0 <= place < heads for place in places)
