"""Ridge regression from its normal equations, with the penalty chosen on rows that were not fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PENALTIES = (1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0, 100.0)  # times the mean square of a column


@dataclass
class Normal:
    """Sums over rows of X^T X and X^T Y: all that a regression needs to know of them."""

    gram: Tensor  # (k, k)
    right: Tensor  # (k, d)
    rows: int = 0

    @classmethod
    def empty(cls, k: int, d: int) -> Normal:
        return cls(torch.zeros(k, k, dtype=torch.float64), torch.zeros(k, d, dtype=torch.float64))

    def add(self, x: Tensor, y: Tensor) -> None:
        self.gram += x.T @ x
        self.right += x.T @ y
        self.rows += len(x)

    def error(self, solution: Tensor) -> float:
        """sum |x B - y|^2 over the rows, up to a constant"""
        return float((solution * (self.gram @ solution - 2 * self.right)).sum())


def ridge_change(folds: Sequence[Normal], penalised: int, penalties: Sequence[float] = PENALTIES) -> Tensor:
    """The B (k, d) that minimises sum |x B - y|^2 + penalty |B|^2; zero where no penalty beats doing nothing.

    >>> x = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64)
    >>> one, other = Normal.empty(1, 1), Normal.empty(1, 1)
    >>> one.add(x[:2], 2 * x[:2])
    >>> other.add(x[2:], 2 * x[2:])
    >>> ridge_change([one, other], penalised=1).round(decimals=2).tolist()
    [[2.0]]

    folds: two sets of rows; the penalty that is best for the one when fitted on the other is used for both together.
    penalised: so many coefficients, the first ones, are held back; an intercept after them is not.
    """
    total = Normal(folds[0].gram + folds[1].gram, folds[0].right + folds[1].right, folds[0].rows + folds[1].rows)
    nothing = torch.zeros_like(total.right)
    best, least = None, 0.0
    if min(fold.rows for fold in folds):
        for penalty in penalties:
            pairs = ((folds[0], folds[1]), (folds[1], folds[0]))
            error = sum(test.error(_solve(fit, penalised, penalty)) for fit, test in pairs)
            if error < least:
                best, least = penalty, error
    return nothing if best is None else _solve(total, penalised, best)


def _solve(normal: Normal, penalised: int, penalty: float) -> Tensor:
    scale = float(normal.gram.diagonal()[:penalised].mean()) if penalised else 0.0
    ridge = torch.zeros(len(normal.gram), dtype=torch.float64)
    ridge[:penalised] = penalty * max(scale, 1e-12)
    return torch.linalg.solve(normal.gram + torch.diag(ridge), normal.right)
