"""Rare-word heads: in the first layer, they point at the least frequent token of a sentence (V19 section 5.3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from headcount.roles.measure import Counted
from headcount.roles.reading import View


@dataclass(frozen=True)
class Rare:
    """How often a head's strongest weight is at the rarest token of the sentence; at one of them if there are several.

    Only sentences count whose rarest token is not among the `frequent` most frequent. The baseline is a head that picks
    any token. V19 gives no threshold: half of the time is ours.
    """

    counts: Counter[int]
    threshold: float = 0.5
    frequent: int = 500
    name: str = "rare"
    details: tuple[str, ...] = ("rarest",)
    common: frozenset[int] = field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        most = frozenset(token for token, _ in self.counts.most_common(self.frequent))
        object.__setattr__(self, "common", most)

    def holds(self, score: float, baseline: float) -> bool:
        return score >= self.threshold

    def count(self, view: View) -> Counted | None:
        if view.site.layer != 0 or not view.of_source:
            return None
        keys = view.keys.ids[view.keys.is_word]
        if not len(keys):
            return None
        seen = np.array([self.counts[int(token)] for token in keys])
        rarest = seen == seen.min()  # (S',)
        if self.common & {int(token) for token in keys[rarest]}:
            return None
        weights, open = view.between_words
        visible = (open & rarest).sum(-1)  # (T',)
        choices = open.sum(-1)
        counted = (visible > 0) & (choices > visible)
        strongest = np.where(open, weights, -1.0).argmax(-1)  # (heads, T')
        hits = (rarest[strongest] & counted).sum(-1)
        chance = (visible[counted] / choices[counted]).sum()
        return Counted(hits[:, None], np.array([counted.sum()]), np.array([chance]))


def frequencies(tokens: Iterable[np.ndarray]) -> Counter[int]:
    """How often each token occurs.

    >>> frequencies([np.array([5, 6]), np.array([5])])
    Counter({5: 2, 6: 1})
    """
    counts: Counter[int] = Counter()
    for ids in tokens:
        counts.update(ids.tolist())
    return counts
