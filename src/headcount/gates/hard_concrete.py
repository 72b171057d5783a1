"""Hard Concrete gates, one per unit: stochastic while they learn, 0 or 1 when they have (V19 section 6.1).

    s = sigmoid((log u - log(1 - u) + log_a) / T),    g = clip(s (r - l) + l, 0, 1)

with u uniform on (0, 1). The penalty is the expected number of open gates (Louizos et al. 2018):

    L_C = sum_u P(g_u != 0) = sum_u sigmoid(log_a_u - T log(-l / r))
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

TEMPERATURE, LEFT, RIGHT = 0.33, -0.1, 1.1  # T, l and r
OPEN = 3.0  # log_a at the start: a gate that is 1, and open in 98% of the samples
DECIDED = 0.01  # as close as that to 0 or 1


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
