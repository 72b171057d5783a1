"""The same number of heads in every layer, in the form that a stock checkpoint can have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headcount.anatomy import Anatomy
from headcount.heads import Head


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
    if any(hasattr(site.module, "relative_attention_bias") for site in sites):
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
