"""Counts of every sentence, head and detail of a role, added up to scores with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headcount.heads import Head
from headcount.roles.measures import Counted, Measure
from headcount.stats import interval
from headcount.structure import AttentionSite

COUNTS = ("hits", "cases", "baseline")
LEAST = 10  # cases; fewer say nothing on a head


@dataclass(frozen=True)
class Role:
    """A head in a role: its score, that of the baseline, and the score's 95% bootstrap interval over sentences.

    >>> Role(Head.parse("encoder.2.7"), "positional", "-1", 0.97, 0.08, 0.96, 0.98, 950).to_json()["detail"]
    '-1'
    """

    head: Head
    role: str
    detail: str
    score: float
    baseline: float
    low: float
    high: float
    cases: int

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "head": str(self.head)}


class Tally:
    """What a role has counted at one site."""

    def __init__(self, measure: Measure, site: AttentionSite, sentences: int) -> None:
        self.measure, self.site = measure, site
        self.hits = np.zeros((sentences, len(site.kept), len(measure.details)), np.float32)
        self.cases = np.zeros((sentences, len(measure.details)), np.float32)
        self.baseline = np.zeros((sentences, len(measure.details)), np.float32)

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything counted, under names of its own."""
        return {f"{self.measure.name} {self.site.name} {name}": getattr(self, name) for name in COUNTS}

    def read(self, arrays: Mapping[str, np.ndarray]) -> Tally:
        """The tally that gave these."""
        for name in COUNTS:
            setattr(self, name, arrays[f"{self.measure.name} {self.site.name} {name}"])
        return self

    def add(self, sentence: int, counted: Counted) -> None:
        self.hits[sentence] += counted.hits
        self.cases[sentence] += counted.cases
        self.baseline[sentence] += counted.baseline

    def scores(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores (heads, details) and baselines (details,); nan where there are too few cases."""
        cases = self.cases.sum(0, dtype=np.float64)
        cases = np.where(cases >= LEAST, cases, np.nan)
        return self.hits.sum(0, dtype=np.float64) / cases, self.baseline.sum(0, dtype=np.float64) / cases

    def found(self) -> list[Role]:
        """The heads that have the role."""
        scores, baselines = self.scores()
        return [
            self.role(head, detail)
            for head in range(scores.shape[0])
            for detail in range(scores.shape[1])
            if np.isfinite(scores[head, detail]) and self.measure.holds(scores[head, detail], baselines[detail])
        ]

    def role(self, head: int, detail: int) -> Role:
        """One head in one detail of the role, whether it has it or not."""
        scores, baselines = self.scores()
        counted = np.stack([self.hits[:, head, detail], self.cases[:, detail]], axis=1)  # (N, 2)
        counted = counted[counted[:, 1] > 0]
        low, high = interval(counted, _ratio)
        return Role(
            self.site.heads[head],
            self.measure.name,
            self.measure.details[detail],
            float(scores[head, detail]),
            float(baselines[detail]),
            low,
            high,
            int(counted[:, 1].sum()),
        )


def best(tallies: list[Tally]) -> list[Role]:
    """For each role, attention kind and detail the head with the highest score."""
    places: dict[tuple[str, str, int], list[tuple[float, Tally, int]]] = {}
    for tally in tallies:
        scores, _ = tally.scores()
        for head, detail in np.argwhere(np.isfinite(scores)):
            key = (tally.measure.name, tally.site.kind, int(detail))
            places.setdefault(key, []).append((float(scores[head, detail]), tally, int(head)))
    winners = {key: max(candidates, key=lambda one: one[0]) for key, candidates in places.items()}
    return [tally.role(head, key[2]) for key, (_, tally, head) in winners.items()]


def _ratio(sums: np.ndarray) -> np.ndarray:
    return sums[..., 0] / np.maximum(sums[..., 1], 1e-9)
