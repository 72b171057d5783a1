"""Hard Concrete gates: stochastic while they learn, 0 or 1 when they have (V19 section 6.1), and their units.

    s = sigmoid((log u - log(1 - u) + log_a) / T),    g = clip(s (r - l) + l, 0, 1)

with u uniform on (0, 1). The penalty is the expected number of open gates (Louizos et al. 2018):

    L_C = sum_u P(g_u != 0) = sum_u sigmoid(log_a_u - T log(-l / r))

A unit is open if its own gate and the gate of its sublayer are open (CoFi, Xia et al. 2022), if it has both:

    xi_u = g_u g_site(u),    E[cost] = sum_u cost_u P(g_u != 0) P(g_site(u) != 0)

and where query heads share a key-value head k, which is there as long as one of them is,

    E[cost] += sum_k cost_k (1 - prod_{u of k} P(g_u = 0)) P(g_site(k) != 0)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from headcount.bench import site_flops, unit_flops
from headcount.errors import HeadcountError
from headcount.heads import Head
from headcount.structure import Site, anatomy, device_of

TEMPERATURE, LEFT, RIGHT = 0.33, -0.1, 1.1  # T, l and r
OPEN = 3.0  # log_a at the start: a gate that is 1, and open in 98% of the samples
DECIDED = 0.01  # as close as that to 0 or 1
ROUNDING = 1e-9  # of sums of costs
LONGEST, HALVINGS = 1e9, 50  # of a step along the penalty: the longest that is tried, and how finely it is measured


class HardConcrete(nn.Module):
    """Gates that start open.

    >>> gates = HardConcrete(3)
    >>> gates.settled().tolist(), round(gates.penalty().item(), 2)
    ([1.0, 1.0, 1.0], 2.93)
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.full((count,), OPEN))

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """(gates,) drawn anew at each call, with gradients."""
        u = torch.rand(self.log_alpha.shape, generator=generator).clamp(1e-6, 1 - 1e-6).to(self.log_alpha)
        return self._stretch((u.log() - (1 - u).log() + self.log_alpha) / TEMPERATURE)

    def chances(self) -> Tensor:
        """(gates,) how likely each gate is to be open at all: P(g != 0)."""
        return torch.sigmoid(self.log_alpha - TEMPERATURE * math.log(-LEFT / RIGHT))

    def penalty(self) -> Tensor:
        """L_C: how many gates are open, in expectation."""
        return self.chances().sum()

    def move_to(self, wanted: float) -> None:
        """Move the gates until this many are open in expectation, each by P(g != 0) P(g = 0): decided ones stay put.

        That is a step down or up the penalty, as far as it takes.

        >>> gates = HardConcrete(8)
        >>> gates.move_to(3)
        >>> round(gates.penalty().item(), 4)
        3.0
        """
        chances = self.chances().detach().double()
        slope = chances * (1 - chances)  # dL_C / dlog_a
        sign = 1.0 if float(chances.sum()) > wanted else -1.0

        def beyond(step: float) -> bool:
            moved = torch.sigmoid(torch.logit(chances) - sign * step * slope).sum()
            return bool(sign * (float(moved) - wanted) <= 0)

        longest = 1.0
        while not beyond(longest) and longest < LONGEST:
            longest *= 2
        shortest = 0.0
        for _ in range(HALVINGS):
            middle = (shortest + longest) / 2
            shortest, longest = (shortest, middle) if beyond(middle) else (middle, longest)
        with torch.no_grad():
            self.log_alpha.sub_((sign * longest * slope).to(self.log_alpha))

    def settled(self) -> Tensor:
        """(gates,) the gates without noise, as at test time."""
        return self._stretch(self.log_alpha.detach())

    def closed(self) -> Tensor:
        """(gates,) which gates are shut for good: less than half open without noise."""
        return self.settled() < 0.5

    def decided(self) -> float:
        """The share of gates that ended within 0.01 of 0 or 1."""
        gates = self.settled()
        return float(((gates < DECIDED) | (gates > 1 - DECIDED)).double().mean()) if len(gates) else 1.0

    @staticmethod
    def _stretch(logits: Tensor) -> Tensor:
        return (torch.sigmoid(logits) * (RIGHT - LEFT) + LEFT).clamp(0, 1)


@dataclass(frozen=True, eq=False)
class GatedUnits:
    """The heads and neurons of a model that gates multiply.

    asked: what has gates of its own: heads, neurons, sublayers. masks: the units that `masked` takes values for.
    heads: the units with gates, in order. places: (U,) where they are among those of `masks`, of which there are `of`.
    own, around: (U,) the number of each unit's own gate, and of its sublayer's; `count`, which is always open, if it
    has none. costs: (U,) of each: 1, or FLOPs as a share of those of all heads and neurons. groups: the places in
    `heads` of query heads that share a key-value head; shared: (groups,) what that one costs. fixed: the share of
    units without gates.
    """

    asked: tuple[str, ...]
    masks: tuple[str, ...]
    heads: tuple[Head, ...]
    places: Tensor
    of: int
    own: Tensor
    around: Tensor
    costs: Tensor
    groups: tuple[tuple[int, ...], ...]
    shared: Tensor
    fixed: float
    count: int

    @classmethod
    def find(
        cls, model: Any, units: str | Sequence[str] = "heads", kinds: Sequence[str] | None = None, length: int = 0
    ) -> GatedUnits:
        """
        >>> from transformers import BertConfig, BertModel
        >>> size = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
        >>> found = GatedUnits.find(BertModel(BertConfig(**size)), "heads,sublayers", length=10)
        >>> len(found.heads), found.count  # neurons close with their sublayer; 8 heads and 4 sublayers have gates
        (136, 12)

        kinds: only units of these kinds get gates. length: of the texts that FLOPs are counted for; 0 counts units.
        """
        asked = anatomy(model, units).asked
        masks = ("heads", "neurons") if "sublayers" in asked else asked
        found, device = anatomy(model, masks), device_of(model)
        sites = found.sites_of(kinds)
        heads = tuple(head for site in sites for head in site.heads)
        if not heads:
            raise HeadcountError(f"this model has no {' or '.join(asked)} left to remove")
        single = [("neurons" if head.is_neuron else "heads") in asked for head in heads]
        numbers = torch.tensor(single).cumsum(0)
        count = int(numbers[-1])
        sublayers = {site.name: count + n for n, site in enumerate(s for s in sites if s.kept)}
        count += len(sublayers) if "sublayers" in asked else 0
        own = torch.where(torch.tensor(single), numbers - 1, count)
        around = [sublayers[head.site] if "sublayers" in asked else count for head in heads]
        costs, shared, fixed = torch.ones(len(heads), dtype=torch.double), torch.zeros(0, dtype=torch.double), 0.0
        groups: list[tuple[int, ...]] = []
        if length:
            whole = sum(site_flops(s, s.kept, length) for s in anatomy(model, ("heads", "neurons")).sites)
            alone: list[float] = []
            together: list[float] = []
            for site in sites:
                each, key_value = _costs(site, length)
                if key_value:
                    sharing: list[list[int]] = [[] for _ in site.layout.kv_kept]
                    for place, number in enumerate(site.layout.kv_index, start=len(alone)):
                        sharing[number].append(place)
                    groups += map(tuple, sharing)
                    together += [key_value] * len(sharing)
                alone += [each] * len(site.kept)
            costs, shared = (torch.tensor(flops, dtype=torch.double) / whole for flops in (alone, together))
            fixed = max(0.0, 1 - float(costs.sum() + shared.sum()))
        chosen = set(heads)
        places = [place for place, head in enumerate(found.heads) if head in chosen]
        return cls(
            asked=asked, masks=masks, heads=heads, of=len(found.heads), count=count, fixed=fixed,
            places=torch.tensor(places, device=device), own=own.to(device),
            around=torch.tensor(around, device=device), costs=costs.to(device), groups=tuple(groups),
            shared=shared.to(device),
        )  # fmt: skip

    def xi(self, gates: Tensor) -> Tensor:
        """(of,) what each unit of `masks` is multiplied by."""
        return torch.ones(self.of, device=gates.device).index_copy(0, self.places, self._product(gates))

    @property
    def are_counted(self) -> bool:
        """Whether every unit costs 1, and has a gate of its own."""
        return self.count == len(self.heads) and bool((self.costs == 1).all())

    @property
    def total(self) -> float:
        """The cost of all of them."""
        return float(self.costs.sum() + self.shared.sum())

    def expected(self, gates: HardConcrete) -> Tensor:
        """The cost of the units that are open, in expectation."""
        chances = gates.chances()
        cost = (self._product(chances) * self.costs.to(chances)).sum()
        if not self.groups:
            return cost
        chances = torch.cat([chances, chances.new_ones(1)])
        open_heads = torch.stack([1 - (1 - chances[self.own[list(group)]]).prod() for group in self.groups])
        open_sites = chances[self.around[[group[0] for group in self.groups]]]
        return cost + (open_heads * open_sites * self.shared.to(chances)).sum()

    def cost(self, heads: Sequence[Head]) -> float:
        """Of some of the units, and of all that have no gates: FLOPs left as a share of the model's."""
        chosen = set(heads)
        return self.fixed + self._cost([place for place, head in enumerate(self.heads) if head in chosen])

    def best(self, gates: HardConcrete, budget: float) -> list[Head]:
        """The units with the largest gates, as many as the budget allows; those with one gate between them together.

        What does not fit is passed over, so that less than the cheapest closed unit is left of the budget. A query head
        gets cheaper once another one pays for its keys and values; what did not fit before is then tried again.
        """
        chances = torch.nn.functional.logsigmoid(gates.log_alpha.detach().double())  # no ties where gates are settled
        chances = torch.cat([chances, chances.new_zeros(1)])
        scores = (chances[self.own] + chances[self.around])[self._firsts]
        waiting = scores.argsort(descending=True, stable=True).tolist()
        kept: list[int] = []
        there: set[int] = set()  # key-value heads
        left = budget + ROUNDING
        fits = True
        while fits and waiting:
            fits, passed = False, []
            for number in waiting:
                members = self._pieces[number]
                cost = self._cost(members, there)
                if cost > left:
                    passed.append(number)
                    continue
                opened = {self._group_of[place] for place in members if place in self._group_of} - there
                fits |= bool(opened)
                kept += members
                there |= opened
                left -= cost
            waiting = passed
        return [self.heads[place] for place in sorted(kept)]

    def _cost(self, places: Sequence[int], there: Collection[int] = ()) -> float:
        """Of units by their place in `heads`, and of their key-value heads, but those that are there anyway."""
        groups = {self._group_of[place] for place in places if place in self._group_of}.difference(there)
        return float(self.costs[list(places)].sum()) + float(self.shared[list(groups)].sum())

    @cached_property
    def _group_of(self) -> dict[int, int]:
        """The number of the key-value head that each query head, by its place, shares with others."""
        return {place: number for number, group in enumerate(self.groups) for place in group}

    @cached_property
    def _pieces(self) -> list[list[int]]:
        """The units that close together: each with a gate of its own by itself, others with their sublayer."""
        found: dict[tuple[int, int], list[int]] = {}
        for place, pair in enumerate(zip(self.own.tolist(), self.around.tolist(), strict=True)):
            found.setdefault(pair, []).append(place)
        return list(found.values())

    @property
    def cheapest(self) -> float:
        """What the least that can be kept costs."""
        return min(map(self._cost, self._pieces))

    @property
    def _firsts(self) -> list[int]:
        return [members[0] for members in self._pieces]

    def _product(self, gates: Tensor) -> Tensor:
        """(U,) of each unit's own gate and its sublayer's."""
        gates = torch.cat([gates, gates.new_ones(1)])
        return gates[self.own] * gates[self.around]


def _costs(site: Site, length: int) -> tuple[float, float]:
    """FLOPs of one unit of a site by itself, and of a key-value head that several of them share, 0 if none do."""
    heads, key_values = len(site.kept), len(site.layout.kv_kept)
    if heads == key_values:
        return unit_flops(site, length), 0.0
    first = site_flops(site, site.kept[:1], length)  # a head and its keys and values
    alone = (site_flops(site, site.kept, length) - key_values * first) / (heads - key_values)
    return alone, first - alone
