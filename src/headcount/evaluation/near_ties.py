"""Near ties: decisions whose two best candidates are so close that the order of summation may decide.

The fast paths and the plain path add the same numbers in another order. They make the same decisions except at near
ties, which `Outcomes.near_ties` therefore counts on the fast paths: examples for classes (sweep.py), outputs for
drafts that were verified (drafting.py), tokens for what was decoded step by step (decoding.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

TIE = 1e-4  # logits closer than this


def best_candidate(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The best candidate, and whether it is a near tie: (N, V) to (N,), (N,)

    >>> best, tied = best_candidate(torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.99999, 0.0]]))
    >>> best.tolist(), tied.tolist()
    ([1, 0], [False, True])
    """
    top, best = logits.max(dim=-1)
    second = logits.scatter(-1, best[..., None], -torch.inf).amax(dim=-1)
    return best, top - second < TIE


def tied_classes(outputs: Tensor) -> Tensor:
    """Which examples' two best classes are a near tie: (B,); none where an output is not one choice.

    >>> tied_classes(torch.tensor([[0.2, 0.7], [0.5, 0.5]])).tolist()
    [False, True]
    """
    if outputs.ndim != 2 or outputs.shape[-1] < 2:
        return torch.zeros(len(outputs), dtype=torch.bool)
    return best_candidate(outputs.float())[1]
