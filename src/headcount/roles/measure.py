"""What a role counts in a sentence, and what it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headcount.roles.reading import View


@dataclass(frozen=True)
class Counted:
    """Of one sentence at one site, for each detail of a role (-1, +1; nsubj, obj): hits, cases, hits of the baseline.

    hits: (heads, details). cases: (details,). baseline: (details,).
    """

    hits: np.ndarray
    cases: np.ndarray
    baseline: np.ndarray


class Measure(Protocol):
    """A role: what it counts, and when a head has it."""

    @property
    def name(self) -> str: ...

    @property
    def details(self) -> tuple[str, ...]: ...

    def holds(self, score: float, baseline: float) -> bool: ...

    def count(self, view: View) -> Counted | None:
        """None where the role makes no sense."""
        ...
