"""Positional heads: the strongest weight is at one relative position, at least 90% of the time (V19 section 5.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headcount.roles.measure import Counted
from headcount.roles.reading import View


@dataclass(frozen=True)
class Positional:
    """How often a head's strongest weight is so many tokens away; special tokens neither look nor are looked at.

    Of a relative position, the tokens count that have another token there, and a choice. In cross-attention, tokens
    are counted from the beginning of each text. The baseline is a head that picks any token.

    >>> Positional(reach=2).details
    ('-2', '-1', '+0', '+1', '+2')
    """

    threshold: float = 0.9
    reach: int = 5
    name: str = "positional"

    @property
    def details(self) -> tuple[str, ...]:
        return tuple(f"{offset:+d}" for offset in range(-self.reach, self.reach + 1))

    def holds(self, score: float, baseline: float) -> bool:
        return score >= self.threshold

    def count(self, view: View) -> Counted | None:
        weights, open = view.between_words
        if not weights.shape[1] or not weights.shape[2]:
            return None
        strongest = np.where(open, weights, -1.0).argmax(-1)  # (heads, T)
        choices = open.sum(-1)  # (T,)
        query = np.arange(len(choices))
        hits, counts, chance = [], [], []
        for offset in range(-self.reach, self.reach + 1):
            key = query + offset
            there = (key >= 0) & (key < open.shape[1])
            there[there] &= open[query[there], key[there]]
            there &= choices > 1
            hits.append((strongest[:, there] == key[there]).sum(-1))
            counts.append(there.sum())
            chance.append((1 / choices[there]).sum())
        return Counted(np.stack(hits, axis=-1), np.array(counts), np.array(chance))
