"""Which heads to remove: the candidates, how many at a time, and ways to choose among them by their gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Protocol

import numpy as np
from scipy.linalg import solve_triangular

from headcount.errors import HeadcountError, counted
from headcount.heads import Head
from headcount.pruning.compensation import Unexplained
from headcount.pruning.unit_costs import CostTable
from headcount.scoring import normalized
from headcount.structure import Anatomy, AttentionSite, Site

Picker = Callable[[np.ndarray, Sequence[Head], int, "np.ndarray"], list[int]]


def by_importance(gradients: np.ndarray, heads: Sequence[Head], count: int, candidates: np.ndarray) -> list[int]:
    """M19: the smallest E_x |g_h|, normalised per layer and kind."""
    return _smallest(_normalized_importance(gradients, heads), count, candidates)


def by_fisher(gradients: np.ndarray, heads: Sequence[Head], count: int, candidates: np.ndarray) -> list[int]:
    """The smallest E_x g_h^2: interactions are ignored."""
    return _smallest((gradients.astype(np.float64) ** 2).mean(0), count, candidates)


def by_interactions(gradients: np.ndarray, heads: Sequence[Head], count: int, candidates: np.ndarray) -> list[int]:
    """The set whose removal costs least, by Fisher interactions and swaps."""
    return cheapest_set(gradients, count, candidates.tolist())


PICKERS: dict[str, Picker] = {"importance": by_importance, "fisher": by_fisher, "interactions": by_interactions}


def _smallest(scores: np.ndarray, count: int, candidates: np.ndarray) -> list[int]:
    order = np.argsort(np.where(candidates, scores, np.inf), kind="stable")
    return [int(i) for i in order[: min(count, int(candidates.sum()))]]


def _normalized_importance(gradients: np.ndarray, heads: Sequence[Head]) -> np.ndarray:
    return normalized(tuple(heads), np.abs(gradients).mean(0, dtype=np.float64))


def cheapest_set(gradients: np.ndarray, count: int, candidates: Sequence[bool] | None = None) -> list[int]:
    """The `count` heads whose joint removal is expected to cost least: chosen greedily, then improved by swaps.

    To second order, with the Fisher information F = E_x[g g^T] in place of the Hessian, removing the set S raises the
    loss by 1/2 sum_{h, h' in S} F_hh'.

    >>> twins = np.array([[1.0, 1.0, 1.2], [1.0, 1.0, -1.2]])  # heads 0 and 1 pull the same way, 2 another
    >>> sorted(cheapest_set(twins, 2))
    [0, 2]

    gradients: (examples, heads), signed. candidates: which heads can be removed; all by default.
    """
    gradients = np.asarray(gradients, np.float64)
    fisher = gradients.T @ gradients / len(gradients)  # (H, H)
    alone = 0.5 * fisher.diagonal()
    free = np.ones(len(fisher), bool) if candidates is None else np.asarray(candidates, bool)
    chosen = np.zeros(len(fisher), bool)
    joint = np.zeros(len(fisher))  # F 1_S
    for _ in range(min(count, int(free.sum()))):
        cost = np.where(free & ~chosen, alone + joint, np.inf)
        best = int(cost.argmin())
        chosen[best] = True
        joint += fisher[best]
    return _improve_by_swaps(fisher, alone, chosen, joint, free)


def _improve_by_swaps(
    fisher: np.ndarray, alone: np.ndarray, chosen: np.ndarray, joint: np.ndarray, free: np.ndarray
) -> list[int]:
    """Exchange the pair of heads that lowers the cost most, until none does."""
    for _ in range(10 * len(fisher)):
        inside, outside = np.flatnonzero(chosen), np.flatnonzero(free & ~chosen)
        if not len(inside) or not len(outside):
            break
        back = alone[inside] - joint[inside]  # (I,) cost of putting a head back
        out = alone[outside] + joint[outside]  # (O,) cost of removing another one
        change = back[:, None] + out[None] - fisher[np.ix_(inside, outside)]  # (I, O)
        one, other = np.unravel_index(change.argmin(), change.shape)
        if change[one, other] >= -1e-12 * max(1.0, alone.max()):
            break
        chosen[inside[one]], chosen[outside[other]] = False, True
        joint += fisher[outside[other]] - fisher[inside[one]]
    inside = np.flatnonzero(chosen)
    return [int(i) for i in inside[np.argsort(alone[inside], kind="stable")]]


def in_groups(found: Anatomy, heads: Sequence[Head]) -> list[list[int]]:
    """The positions of heads that share a key-value head, group by group.

    >>> from transformers import LlamaConfig, LlamaModel
    >>> from headcount.structure import anatomy
    >>> size = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)
    >>> found = anatomy(LlamaModel(LlamaConfig(**size, intermediate_size=8, vocab_size=8)))
    >>> in_groups(found, found.heads)
    [[0, 1], [2, 3]]
    """
    size = {site.name: site.layout.group for site in found.sites}
    groups: dict[tuple[str, int], list[int]] = {}
    for place, head in enumerate(heads):
        groups.setdefault((head.site, head.index // size[head.site]), []).append(place)
    return list(groups.values())


def pick_groups(
    pick: Picker,
    groups: Sequence[Sequence[int]],
    gradients: np.ndarray,
    heads: Sequence[Head],
    count: int,
    candidates: np.ndarray,
    keep_at_least: int = 0,
) -> list[int]:
    """At most `count` heads, whole groups of them, chosen by a picker that sees each group as one head.

    The gradient of a factor on all heads of a group is the sum of theirs.
    """
    summed = np.stack([gradients[:, places].sum(1) for places in groups], axis=1)  # (examples, groups)
    free = np.array([bool(candidates[list(places)].all()) for places in groups])
    first = [heads[places[0]] for places in groups]
    size = max(map(len, groups))
    if keep_at_least:
        free &= ~most_important(summed, first, -(-keep_at_least // size))
    chosen = pick(summed, first, min(count // size, int(free.sum())), free)
    return [place for group in chosen for place in groups[group]]


def most_important(gradients: np.ndarray, heads: Sequence[Head], per_site: int) -> np.ndarray:
    """(heads,) whether a head is among the `per_site` most important ones of its site."""
    best: dict[str, list[int]] = {}
    for place in np.argsort(-np.abs(gradients).mean(0), kind="stable"):
        best.setdefault(heads[place].site, []).append(int(place))
    chosen = np.zeros(len(heads), bool)
    chosen[[place for places in best.values() for place in places[:per_site]]] = True
    return chosen


def equally_many(
    found: Anatomy, heads: Sequence[Head], gradients: np.ndarray, count: int, candidates: np.ndarray
) -> list[Head]:
    """At most `count` heads to remove, the same number at every site: the least important ones of each.

    gradients: (examples, heads), signed. candidates: (heads,) which of them can be removed.
    """
    scores = _normalized_importance(gradients, heads).tolist()
    score = {head: value for head, value, free in zip(heads, scores, candidates.tolist(), strict=True) if free}
    chosen: list[Head] = []
    for _, more in across_layers(found.sites, score):
        if len(chosen) + len(more) > count:
            break
        chosen += more
    return chosen


def across_layers(sites: Iterable[Site], score: Mapping[Head, float]) -> list[tuple[float, list[Head]]]:
    """Units that are removed together so that all these sites keep the same number, with their summed score; rising.

    Heads that share a key-value head are removed together, and where layers share a position bias (T5) the same heads
    are removed in all layers of a kind: a stock configuration cannot describe anything else.
    """
    sites = [site for site in sites if any(head in score for head in site.heads)]
    groups: dict[str, list[tuple[float, list[Head]]]] = {}  # per site: the units that are removed together
    for site in sites:
        sharing: dict[int, list[Head]] = {}
        for head in site.heads:
            if head in score:
                sharing.setdefault(head.index // site.layout.group, []).append(head)
        groups[site.name] = [(sum(score[head] for head in some), some) for some in sharing.values()]
    if any(isinstance(site, AttentionSite) and site.shared for site in sites):
        _average_over_layers(groups)
    ranked = [sorted(some, key=lambda group: group[0]) for some in groups.values()]
    together = zip(*ranked, strict=False)  # no more than the smallest site has
    return [(sum(value for value, _ in some), [head for _, heads in some for head in heads]) for some in together]


@dataclass(frozen=True)
class Candidate:
    """Units that are removed together or not at all: one, a whole sublayer, or one of every layer.

    alone: the loss is that of its units, each of which others can stand in for, and not of a whole sublayer.
    """

    loss: float
    units: tuple[Head, ...]
    alone: bool = True


def candidates_of(
    found: Anatomy,
    losses: Mapping[Head | str, float],
    names: Collection[str],
    *,
    uniform: bool,
    keep_at_least: int,
    groups: str = "any",
) -> list[Candidate]:
    """What can be removed from a model next, with the loss that is expected.

    found: the units of the model as it is now. losses: of each unit. names: of the sites that can lose units.
    uniform, keep_at_least, groups: see `Pruning`.
    """
    sites = [site for site in found.sites if site.name in names]
    free: dict[Head, float] = {}
    for site in sites:
        own = [head for head in site.heads if head in losses]
        needed = sorted(own, key=lambda head: -losses[head])[:keep_at_least]
        free |= {head: losses[head] for head in own if head not in set(needed)}
    if uniform:
        attention = [site for site in sites if isinstance(site, AttentionSite)]
        feed_forward = [site for site in sites if not isinstance(site, AttentionSite)]
        rows = [*across_layers(attention, free), *across_layers(feed_forward, free)]
        return [Candidate(loss, tuple(some)) for loss, some in rows]
    one_by_one = [Candidate(loss, (head,)) for head, loss in free.items()]
    if groups == "whole":
        heads = [head for site in sites for head in site.heads]
        together = [tuple(heads[place] for place in places) for places in in_groups(found, heads)]
        whole_groups = [some for some in together if all(head in free for head in some)]
        one_by_one = [Candidate(sum(free[head] for head in some), some) for some in whole_groups]
    there = [site for site in sites if site.kept and site.name in losses]
    whole = [Candidate(losses[site.name], site.heads, alone=False) for site in there]
    return [*one_by_one, *([] if keep_at_least else whole)]


class OneByOne(Protocol):
    """Units of one site that are removed one after another: what each is worth changes with those that have gone."""

    def growth(self, index: int) -> float:
        """By what factor the expected loss of a unit has grown."""

    def remove(self, index: int) -> Sequence[int]:
        """Let a unit go; the units that are cheaper now."""


class Elimination:
    """By what the others of a site cannot reproduce, which grows as there are fewer left to do so.

    With R the columns that are gone and L L^T = P[R, R], P of the others is P - Z^T Z with Z = L^-1 P[R, :], which gets
    new rows with each unit that goes.
    """

    def __init__(self, found: Unexplained, kept: Sequence[int]) -> None:
        self.places = {index: place for place, index in enumerate(kept)}
        self.found, self.own = found, found.own.double().numpy()
        self.gone = np.zeros((0, len(found.matrix)))  # Z, (|R|, k)

    def growth(self, index: int) -> float:
        before, now = (self._squares(columns, index) for columns in (self._column(index), self._now(index)))
        return now / before

    def remove(self, index: int) -> Sequence[int]:
        now = self._now(index)
        root = np.linalg.cholesky(_positive(now[self._rows(index)]))
        self.gone = np.concatenate([self.gone, solve_triangular(root, now.T, lower=True)])
        return ()

    def _column(self, index: int) -> np.ndarray:
        """P[:, U] before anything was removed, (k, width)"""
        return self.found.matrix[:, self._rows(index)].double().numpy() @ self.own[self.places[index]]

    def _now(self, index: int) -> np.ndarray:
        return self._column(index) - self.gone.T @ self.gone[:, self._rows(index)]

    def _squares(self, columns: np.ndarray, index: int) -> float:
        """The squared residual of a unit with these P[:, U]: see `_left_over`."""
        inverse = np.linalg.inv(_positive(columns[self._rows(index)]))
        left = np.trace(inverse - self.found.penalty * inverse @ (columns.T @ columns) @ inverse)
        return max(float(left), 1e-6 * float(np.trace(inverse)))

    def _rows(self, index: int) -> slice:
        width, place = self.own.shape[-1], self.places[index]
        return slice(place * width, (place + 1) * width)


class Interactions:
    """By Fisher interactions: without the set S, losing u costs 1/2 E[g_u^2] + sum_{v in S} E[g_u g_v].

    gradients: (examples, units), of the units of one site, whose indices are `kept`.
    """

    def __init__(self, gradients: np.ndarray, kept: Sequence[int]) -> None:
        self.places, self.kept = {index: place for place, index in enumerate(kept)}, np.array(kept)
        gradients = np.asarray(gradients, np.float64)
        self.fisher = gradients.T @ gradients / len(gradients)  # (units, units)
        self.rise = 0.5 * self.fisher.diagonal()

    def growth(self, index: int) -> float:
        place = self.places[index]
        alone = 0.5 * float(self.fisher[place, place])
        return float(self.rise[place]) / alone if alone else 1.0

    def remove(self, index: int) -> Sequence[int]:
        joint = self.fisher[self.places[index]]
        self.rise = self.rise + joint
        return [int(other) for other in self.kept[joint < 0]]


def cheapest_by_cost(
    candidates: Iterable[Candidate],
    table: CostTable,
    widths: Mapping[str, int],
    goal: float,
    one_by_one: Mapping[str, OneByOne] | None = None,
) -> list[Head]:
    """Units to remove until the saving reaches a goal: those with the smallest expected loss per cost first.

    >>> table = CostTable({"encoder.0": np.array([0.0, 8.0, 16.0]), "encoder_ffn.0": np.arange(5.0)})
    >>> few = [Candidate(4.0, (Head("encoder", 0, 1),)), Candidate(1.0, (Head("encoder_ffn", 0, 2),))]
    >>> [str(head) for head in cheapest_by_cost(few, table, {"encoder.0": 2, "encoder_ffn.0": 4}, goal=8)]
    ['encoder.0.1']

    widths: how many units each site has now. goal: what the whole cut is to save, with what is gone already.
    one_by_one: by site, how the expected losses of its units change as others go.
    """
    left, known = dict(widths), one_by_one or {}
    each = {name: table.per_unit(name, width) for name, width in widths.items() if width}

    def price(one: Candidate) -> float:
        grown = [known[head.site].growth(head.index) for head in one.units if one.alone and head.site in known]
        return one.loss * (sum(grown) / len(grown) if grown else 1.0) / sum(each[head.site] for head in one.units)

    some = list(candidates)
    place_of = {head: place for place, one in enumerate(some) if one.alone for head in one.units}
    queue = [(one.loss / sum(each[head.site] for head in one.units), place) for place, one in enumerate(some)]
    heapify(queue)
    chosen: dict[Head, None] = {}
    while queue and table.saved(left) < goal:
        before, place = heappop(queue)
        now = price(some[place])
        if queue and now > queue[0][0] and now > before:  # dearer than when it was put into the queue
            heappush(queue, (now, place))
            continue
        for head in some[place].units:
            if head in chosen:
                continue
            chosen[head] = None
            left[head.site] -= 1
            if some[place].alone and head.site in known:
                for index in known[head.site].remove(head.index):
                    other = replace(head, index=index)
                    if other in place_of and other not in chosen:
                        heappush(queue, (price(some[place_of[other]]), place_of[other]))
    return list(chosen)


def _positive(matrix: np.ndarray) -> np.ndarray:
    """A symmetric matrix as positive definite as it is but for rounding."""
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * values.clip(min=1e-9 * max(1e-30, float(values.max())))) @ vectors.T


def _average_over_layers(groups: dict[str, list[tuple[float, list[Head]]]]) -> None:
    """Give every head the mean score of its index over the layers of its kind."""
    total: dict[tuple[str, int], list[float]] = {}
    for some in groups.values():
        for value, heads in some:
            total.setdefault((heads[0].kind, heads[0].index), []).append(value)
    for some in groups.values():
        some[:] = [(float(np.mean(total[heads[0].kind, heads[0].index])), heads) for _, heads in some]


def removable(order: Sequence[Head], keep_at_least: int = 0, present: Iterable[Head] | None = None) -> list[Head]:
    """The heads of an order that can be removed, least important first, if every site keeps `keep_at_least`.

    >>> order = [Head("encoder", 0, 0), Head("encoder", 0, 1), Head("encoder", 1, 0)]
    >>> [str(head) for head in removable(order, keep_at_least=1)]
    ['encoder.0.0']

    present: all heads of the model, where the order names only some of them.
    """
    if keep_at_least < 0:
        raise HeadcountError(
            f"{counted(keep_at_least, 'head')} cannot be kept",
            advice="give {keep_at_least} a number of heads, 0 or more",
        )
    room = Counter(head.site for head in (order if present is None else present))
    chosen = []
    for head in order:
        if room[head.site] > keep_at_least:
            room[head.site] -= 1
            chosen.append(head)
    if not chosen:
        raise HeadcountError(
            f"no head can be removed: every site has at most {keep_at_least}", advice="lower {keep_at_least}"
        )
    return chosen
