"""`GatedUnits`: which heads and neurons have gates, which gates multiply each of them, and what it costs.

A unit is open if its own gate and the gate of its sublayer are open (CoFi, Xia et al. 2022), if it has both:

    xi_u = g_u g_site(u),    E[cost] = sum_u cost_u P(g_u != 0) P(g_site(u) != 0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from headcount.bench import unit_flops
from headcount.errors import HeadcountError
from headcount.gates.hard_concrete import HardConcrete
from headcount.heads import Head
from headcount.structure import anatomy, device_of

ROUNDING = 1e-9  # of sums of costs


@dataclass(frozen=True, eq=False)
class GatedUnits:
    """The heads and neurons of a model that gates multiply.

    asked: what has gates of its own: heads, neurons, sublayers. masks: the units that `masked` takes values for.
    heads: the units with gates, in order. places: (U,) where they are among those of `masks`, of which there are `of`.
    own, around: (U,) the number of each unit's own gate, and of its sublayer's; `count`, which is always open, if it
    has none. costs: (U,) of each: 1, or FLOPs as a share of those of all heads and neurons. fixed: the share of those
    without gates.
    """

    asked: tuple[str, ...]
    masks: tuple[str, ...]
    heads: tuple[Head, ...]
    places: Tensor
    of: int
    own: Tensor
    around: Tensor
    costs: Tensor
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
        costs, fixed = torch.ones(len(heads), dtype=torch.double), 0.0
        if length:
            everything = {site.name: site for site in anatomy(model, ("heads", "neurons")).sites}
            each = {name: unit_flops(site, length) for name, site in everything.items()}
            whole = sum(each[name] * len(site.kept) for name, site in everything.items())
            costs = torch.tensor([each[head.site] / whole for head in heads], dtype=torch.double)
            fixed = max(0.0, 1 - float(costs.sum()))
        chosen = set(heads)
        places = [place for place, head in enumerate(found.heads) if head in chosen]
        return cls(
            asked=asked, masks=masks, heads=heads, of=len(found.heads), count=count, fixed=fixed,
            places=torch.tensor(places, device=device), own=own.to(device),
            around=torch.tensor(around, device=device), costs=costs.to(device),
        )  # fmt: skip

    def xi(self, gates: Tensor) -> Tensor:
        """(of,) what each unit of `masks` is multiplied by."""
        return torch.ones(self.of, device=gates.device).index_copy(0, self.places, self._product(gates))

    def expected(self, gates: HardConcrete) -> Tensor:
        """The cost of the units that are open, in expectation."""
        chances = self._product(gates.chances())
        return (chances * self.costs.to(chances)).sum()

    def cost(self, heads: Sequence[Head]) -> float:
        """Of some of the units, and of all that have no gates: FLOPs left as a share of the model's."""
        chosen = set(heads)
        return self.fixed + sum(c for head, c in zip(self.heads, self.costs.tolist(), strict=True) if head in chosen)

    def best(self, gates: HardConcrete, budget: float) -> list[Head]:
        """The units with the largest gates, as many as the budget allows; those with one gate between them together.

        What does not fit is passed over, so that less than the cheapest closed unit is left of the budget.
        """
        chances = torch.nn.functional.logsigmoid(gates.log_alpha.detach().double())  # no ties where gates are settled
        chances = torch.cat([chances, chances.new_zeros(1)])
        scores = (chances[self.own] + chances[self.around])[self._firsts]
        kept: list[int] = []
        for number in scores.argsort(descending=True, stable=True).tolist():
            members = self._pieces[number]
            cost = float(self.costs[members].sum())
            if cost <= budget + ROUNDING:
                kept += members
                budget -= cost
        return [self.heads[place] for place in sorted(kept)]

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
        return min(float(self.costs[members].sum()) for members in self._pieces)

    @property
    def _firsts(self) -> list[int]:
        return [members[0] for members in self._pieces]

    def _product(self, gates: Tensor) -> Tensor:
        """(U,) of each unit's own gate and its sublayer's."""
        gates = torch.cat([gates, gates.new_ones(1)])
        return gates[self.own] * gates[self.around]
