"""Which heads can go together: second-order (Fisher) interactions and a local search that swaps heads in and out.

Removing the heads of a set S moves xi from 1 to 0 there. To second order, with the Fisher information of the masks,
F = E_x[g g^T] for the gradients g of each example's loss, in the place of the Hessian, and as the model has converged
with gradients that are zero on average, the loss changes by

    L(S) = 1/2 sum_{h, h' in S} F_hh'

Two heads that do the same thing are each unimportant alone, and important together: that is what F_hh' sees.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def choose_together(gradients: np.ndarray, count: int, allowed: Sequence[bool] | None = None) -> list[int]:
    """The `count` heads whose removal, all together, is expected to cost the least: greedily, then by swaps.

    >>> twins = np.array([[1.0, 1.0, 1.2], [1.0, 1.0, -1.2]])  # heads 0 and 1 pull the same way, 2 another
    >>> sorted(choose_together(twins, 2))
    [0, 2]

    gradients: (examples, heads), signed. allowed: which heads may go; all by default.
    """
    gradients = np.asarray(gradients, np.float64)
    fisher = gradients.T @ gradients / len(gradients)  # (H, H)
    single = 0.5 * fisher.diagonal()
    may = np.ones(len(fisher), bool) if allowed is None else np.asarray(allowed, bool)
    chosen = np.zeros(len(fisher), bool)
    together = np.zeros(len(fisher))  # F 1_S
    for _ in range(min(count, int(may.sum()))):
        cost = np.where(may & ~chosen, single + together, np.inf)
        best = int(cost.argmin())
        chosen[best] = True
        together += fisher[best]
    return _swap(fisher, single, chosen, together, may)


def _swap(
    fisher: np.ndarray, single: np.ndarray, chosen: np.ndarray, together: np.ndarray, may: np.ndarray
) -> list[int]:
    """Exchange the pair of heads that lowers the cost most, until none does."""
    for _ in range(10 * len(fisher)):
        inside, outside = np.flatnonzero(chosen), np.flatnonzero(may & ~chosen)
        if not len(inside) or not len(outside):
            break
        back = single[inside] - together[inside]  # (I,) cost of taking a head back
        out = single[outside] + together[outside]  # (O,) cost of removing another one
        change = back[:, None] + out[None] - fisher[np.ix_(inside, outside)]  # (I, O)
        one, other = np.unravel_index(change.argmin(), change.shape)
        if change[one, other] >= -1e-12 * max(1.0, single.max()):
            break
        chosen[inside[one]], chosen[outside[other]] = False, True
        together += fisher[outside[other]] - fisher[inside[one]]
    inside = np.flatnonzero(chosen)
    return [int(i) for i in inside[np.argsort(single[inside], kind="stable")]]
