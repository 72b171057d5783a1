"""Idle heads, found everywhere since V19: most of their weight rests on the first token or on a separator."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headcount.roles.measure import Counted
from headcount.roles.reading import View


@dataclass(frozen=True)
class Idle:
    """How much of a head's weight, on average over the words, rests on the first token, or on special tokens behind it.

    The first token is whatever stands first: [CLS], a beginning of text, or a word. The baseline is even attention.
    More than all else together, one half, is our threshold.
    """

    threshold: float = 0.5
    name: str = "idle"
    details: tuple[str, ...] = ("first", "separator")

    def holds(self, score: float, baseline: float) -> bool:
        return score >= self.threshold

    def count(self, view: View) -> Counted:
        first = np.arange(len(view.keys.ids)) == 0  # (S,)
        hits, counts, chance = [], [], []
        for target in (first, ~first & ~view.keys.is_word):
            visible = (view.open & target).sum(-1)  # (T,)
            choices = view.open.sum(-1)
            counted = view.queries.is_word & (visible > 0) & (choices > visible)
            if view.within:
                counted = counted & ~target  # a first word does not rest on itself
            hits.append((view.weights[:, counted] * target).sum((-2, -1)))
            counts.append(counted.sum())
            chance.append((visible[counted] / choices[counted]).sum())
        return Counted(np.stack(hits, axis=-1), np.array(counts), np.array(chance))
