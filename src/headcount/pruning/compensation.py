"""Compensate for removed units without training and at no cost at run time: adjust the output projections.

`mean` adds the average output of the removed heads or neurons to the projection's bias. `refit` takes all sites,
attention and feed-forward, in the order in which they run and solves, for each, the ridge regression that makes its
remaining units reproduce what the whole model passes on there: the site's output added to the residual stream. The
sites before it have been refitted by then, so it also corrects what they left wrong in the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from headcount.engine import Progress, fast_products, product
from headcount.errors import HeadcountError, unknown
from headcount.pruning.calibration import Calibration, LayerwiseForward
from headcount.scoring import Residual
from headcount.structure import Site, is_transposed, whole_anatomy
from headcount.tasks import Task

REPRODUCED = (1e-2, 1e-1, 1.0)  # penalties of a unit's regression on the others, times the mean square of a column
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)  # times the mean square of a column
WELL_CONDITIONED = 0.1  # from this penalty on, single precision, twice as fast, tells which penalty is better
DIRECTIONS = 64  # of what is to be reproduced, in which penalties are compared
BLOCK = 256  # columns of a Gram matrix that are multiplied at once

Model = TypeVar("Model", bound=nn.Module)
Sites = dict[str, Site]


def compensate(
    pruned: Model,
    whole: nn.Module,
    task: Task,
    how: str = "refit",
    *,
    calibration: Calibration | None = None,
    progress: Progress | None = None,
) -> Model:
    """Adjust the output projections of a pruned model, in place, to stand in for the removed units; returns the model.

    whole: the model that units were removed from. task: its texts are the calibration set; labels are not used.
    how: "none", "mean" or "refit".
    calibration: what `Calibration(whole, task)` has recorded already, to use it several times.
    """
    if how not in _ADJUSTMENTS:
        raise HeadcountError(unknown("compensation", how, _ADJUSTMENTS))
    adjust = _ADJUSTMENTS[how]
    if adjust is None:
        return pruned
    seen = calibration or Calibration(whole, task)
    originals = {site.name: site for site in whole_anatomy(whole).sites}
    sites = {site.name: site for site in whole_anatomy(pruned).sites}
    changed = [name for name in seen.order if len(sites[name].kept) < len(originals[name].kept)]
    if not changed:
        return pruned
    with fast_products():
        adjust(sites, originals, changed, pruned, seen, progress or (lambda share: None))
    return pruned


def _add_means(
    sites: Sites, originals: Sites, changed: list[str], pruned: Any, seen: Calibration, progress: Progress
) -> None:
    """`mean`: add what the removed units put out on average to the bias of every site that lost some."""
    _refuse_without_bias([sites[name] for name in changed])
    for done, name in enumerate(changed):
        _fold_mean(sites[name], originals[name], seen)
        progress((done + 1) / len(changed))


def _refit_all(
    sites: Sites, originals: Sites, changed: list[str], pruned: Any, seen: Calibration, progress: Progress
) -> None:
    """`refit`: from the first site that lost units on, in running order, so that each also corrects those before it."""
    names = seen.order[seen.order.index(changed[0]) :]
    forward = LayerwiseForward(pruned.eval(), seen.task, seen.batches, [sites[name] for name in seen.order])
    for done, name in enumerate(names):
        if sites[name].kept or sites[name].output.bias is not None:
            _refit(sites[name], seen, forward)
        progress((done + 1) / len(names))


# To add a compensation: a function like the two above, its name here and in settings.py.
_ADJUSTMENTS: dict[str, Callable[..., None] | None] = {"none": None, "mean": _add_means, "refit": _refit_all}


def _fold_mean(site: Site, original: Site, seen: Calibration) -> None:
    """Add the removed units' mean output (their mean context through their columns) to the bias."""
    weight = columns_of(original)  # (d, units * width)
    mean = seen.mean_context(original.name).clone()  # (units * width,)
    by_unit = mean.view(len(original.kept), original.width)
    by_unit[[original.places[index] for index in site.kept]] = 0
    with torch.no_grad():
        site.output.bias += (weight.double() @ mean).to(site.output.bias.dtype)


def _refit(site: Site, seen: Calibration, forward: LayerwiseForward) -> None:
    """Change W and b of a site's output projection so that it passes on what the whole model does, at every token t.

    The change (D, e) minimises sum_t |D c_t + e - m_t|^2 + penalty |D|^2. c_t: the output of the remaining units in the
    pruned model at token t; m_t: what is missing there, target minus what is handed on now.
    """
    output: Any = site.output
    has_bias = output.bias is not None
    width = len(site.kept) * site.width
    folds = [NormalEquations.empty(width + has_bias, len(columns_of(site))) for _ in range(2)]
    for context, missing in seen.missing(forward, site):  # (n, width), (n, d)
        if has_bias:
            context = torch.cat([context, context.new_ones(len(context), 1)], dim=1)
        half = len(context) // 2
        folds[0].add(context[:half], missing[:half])
        folds[1].add(context[half:], missing[half:])
    if not forward.shared:  # a layer that runs again is given other inputs once it is refitted
        seen.outputs.setdefault(forward.model, {})[site.name] = OutputSums.of(folds, width, has_bias)
    change = ridge_change(folds, penalised=width)  # (width [+ 1], d)
    if not bool(change.isfinite().all()):
        raise HeadcountError(
            f"the regression at {site.name} has no finite solution", advice="use more data, or another {compensation}"
        )
    with torch.no_grad():
        _add_columns(site, change[:width].T)
        if has_bias:
            output.bias += change[-1].to(output.bias)


def unexplained(model: nn.Module, seen: Calibration) -> dict[str, Unexplained]:
    """By site: the part of each unit's output that the other units there cannot reproduce, and a refit therefore loses.

    With G the Gram matrix of the units' outputs (centred, if a bias can stand in for their mean) and P = (G + penalty
    I)^-1, the residual of the columns U of a unit after their ridge regression on all others is C P[:, U] P[U, U]^-1:
    one inverse per site gives them all, as in the optimal brain surgeon (Hassibi and Stork 1993; ZipLM, Kurtic et al.
    2023).

    Sites that have been refitted with the same calibration set are not run again: a refit leaves their units' outputs
    as they are.
    """
    sites = [site for site in whole_anatomy(model).sites if site.kept]
    sums = seen.outputs.pop(model, {})
    others = [site for site in sites if site.name not in sums]
    sums |= {site.name: OutputSums.empty(site.width * len(site.kept), site.output.bias is not None) for site in others}
    training = model.training
    model.eval()
    try:
        with fast_products():
            for batch, used in zip(seen.batches, seen.used, strict=True) if others else ():
                for name, context in seen.contexts(model, batch, others).items():
                    sums[name].add(context[used[name]])
    finally:
        model.train(training)
    found = ((site, sums.pop(site.name)) for site in sites)
    return {site.name: outputs.residual(site.width) for site, outputs in found if outputs.rows}


@dataclass(frozen=True, eq=False)
class Unexplained(Residual):
    """The residuals of a site's units.

    own: P[U, U] of the columns U of every unit, (units, width, width). penalty: of the regressions.
    gram: G, where the others predict nothing and P is the unit matrix.
    """

    own: Tensor
    penalty: float
    gram: Tensor | None = None

    def lost(self, weight: Tensor) -> tuple[Tensor, float]:
        """What a projection of the outputs loses with each unit, (units,), and with all of them: sums of squares over
        the calibration set, with the others standing in (ZipLM's criterion). weight: (d, k)."""
        weight, width = weight.double(), self.own.shape[-1]
        if self.gram is None:
            by_unit = self.matrix.unflatten(1, (-1, width)).transpose(0, 1).double()  # (units, k, width)
            left = torch.linalg.inv(self.own) - self.penalty * by_unit.mT @ by_unit  # of G: see `_left_over`
            inverse = (by_unit @ self.own).transpose(0, 1).flatten(1)  # P
            gram = torch.linalg.inv(inverse) - self.penalty * torch.eye(len(inverse)).to(inverse)
        else:
            gram, left = self.gram, _blocks(self.gram, width)[1]
        columns = weight.unflatten(1, (-1, width)).transpose(0, 1)  # (units, d, width)
        return (columns @ left * columns).sum((1, 2)), float((weight @ gram * weight).sum())


@dataclass
class OutputSums:
    """Sums over rows of the outputs c (n, width) of a site's units: all that `unexplained` needs of them."""

    gram: Tensor  # (width, width)
    sum: Tensor  # (width,)
    rows: int
    centred: bool  # whether a bias can stand in for their mean

    @classmethod
    def empty(cls, width: int, centred: bool) -> OutputSums:
        return cls(torch.zeros(width, width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64), 0, centred)

    @classmethod
    def of(cls, folds: Sequence[NormalEquations], width: int, centred: bool) -> OutputSums:
        """From those of a refit, whose last column is the bias, if there is one."""
        gram, rows = torch.stack([fold.gram for fold in folds]).sum(0), sum(fold.rows for fold in folds)
        return cls(gram[:width, :width], gram[:width, -1] if centred else gram.new_zeros(width), rows, centred)

    def add(self, context: Tensor) -> None:
        self.gram += gram_matrix(context)
        self.sum += context.sum(0)
        self.rows += len(context)

    def residual(self, width: int) -> Unexplained:
        """For units of this many columns each, with the penalty that predicts best by generalised cross-validation.

        Where the others predict nothing, which a large penalty says, a unit's whole output is its residual.
        """
        mean = self.sum / self.rows if self.centred else torch.zeros_like(self.sum)
        gram = self.gram - self.rows * torch.outer(mean, mean)
        scale = max(float(gram.diagonal().mean()), 1e-12)
        best, least, chosen = None, float(len(gram)), 0.0
        for penalty in (share * scale for share in REPRODUCED):
            inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram + penalty * torch.eye(len(gram)).to(gram)))
            fitted = len(gram) - penalty * float(inverse.diagonal().sum())  # degrees of freedom
            left = _left_over(inverse, penalty, width) / gram.diagonal().clamp_min(1e-12 * scale)
            error = float(left.sum()) / max(1e-3, 1 - fitted / self.rows) ** 2
            if error < least:
                best, least, chosen = inverse, error, penalty
        whole = gram if best is None else None
        best = torch.eye(len(gram)).to(gram) if best is None else best
        return Unexplained(_over_own_block(best, width).float(), mean.float(), _blocks(best, width)[1], chosen, whole)


def _left_over(inverse: Tensor, penalty: float, width: int) -> Tensor:
    """The squared residual of every column, (k,): diag M^T G M with M = P[:, U] P[U, U]^-1 for each unit's columns U.

    As G = P^-1 - penalty I, that is diag B - penalty B P[:, U]^T P[:, U] B with B = P[U, U]^-1: no product with G.
    """
    blocks, own = _blocks(inverse, width)
    inverted = torch.linalg.inv(own)  # (units, width, width)
    left = inverted - penalty * inverted @ (blocks.mT @ blocks) @ inverted
    return left.diagonal(dim1=1, dim2=2).flatten()


def _over_own_block(inverse: Tensor, width: int) -> Tensor:
    """P[:, U] P[U, U]^-1 for the columns U of every unit, side by side: (k, k)."""
    blocks, own = _blocks(inverse, width)
    return torch.linalg.solve(own, blocks.mT).mT.transpose(0, 1).flatten(1)


def _blocks(inverse: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """P[:, U] (units, k, width) and P[U, U] (units, width, width) of the columns U of every unit."""
    blocks = inverse.unflatten(1, (-1, width)).transpose(0, 1)
    return blocks, torch.stack([inverse[at : at + width, at : at + width] for at in range(0, len(inverse), width)])


def columns_of(site: Site) -> Tensor:
    """The output projection's weight as (d, units * width), whichever way the module stores it."""
    weight = site.output.weight.detach()
    return weight.T if is_transposed(site.output) else weight


def _add_columns(site: Site, change: Tensor) -> None:
    site.output.weight += (change.T if is_transposed(site.output) else change).to(site.output.weight)


def _refuse_without_bias(sites: list[Site]) -> None:
    bare = [site.name for site in sites if site.output.bias is None]
    if bare:
        raise HeadcountError(
            f"the output projection of {bare[0]} has no bias to add a mean to", advice="use {compensation} refit"
        )


@dataclass
class NormalEquations:
    """Sums over rows of X^T X and X^T Y: all that a regression needs of them. Added up in double precision."""

    gram: Tensor  # (k, k)
    right: Tensor  # (k, d)
    rows: int = 0

    @classmethod
    def empty(cls, k: int, d: int) -> NormalEquations:
        return cls(torch.zeros(k, k, dtype=torch.float64), torch.zeros(k, d, dtype=torch.float64))

    def add(self, x: Tensor, y: Tensor) -> None:
        self.gram += gram_matrix(x)
        self.right += product(x.T, y)
        self.rows += len(x)

    def single(self) -> NormalEquations:
        """The same sums in single precision."""
        return NormalEquations(self.gram.float(), self.right.float(), self.rows)

    def sketched(self) -> NormalEquations:
        """The same for a few random directions of Y, in which |x B - y|^2 is on average what it is in all of them."""
        d = self.right.shape[1]
        if d <= DIRECTIONS:
            return self
        random = torch.randn(d, DIRECTIONS, generator=torch.Generator().manual_seed(0), dtype=self.right.dtype)
        return NormalEquations(self.gram, self.right @ random, self.rows)

    def error(self, solution: Tensor) -> float:
        """sum |x B - y|^2 over the rows, up to a constant"""
        return float((solution * (self.gram @ solution - 2 * self.right)).sum(dtype=torch.float64))


def gram_matrix(x: Tensor) -> Tensor:
    """X^T X (k, k); a block below the diagonal is the one above it, and not computed again.

    >>> x = torch.arange(6.0).view(2, 3)
    >>> torch.equal(gram_matrix(x), x.T @ x)
    True
    """
    return _times_itself(x.T.contiguous())


def _times_itself(rows: Tensor) -> Tensor:
    """A A^T for A (k, n)"""
    half = len(rows) // 2
    if len(rows) <= BLOCK:
        return product(rows, rows.T)
    corner = product(rows[:half], rows[half:].T)
    upper, lower = _times_itself(rows[:half]), _times_itself(rows[half:])
    return torch.cat([torch.cat([upper, corner], 1), torch.cat([corner.T, lower], 1)])


def ridge_change(folds: Sequence[NormalEquations], penalised: int, penalties: Sequence[float] = PENALTIES) -> Tensor:
    """The B (k, d) that minimises sum |x B - y|^2 + penalty |B|^2; zero where no penalty beats doing nothing.

    >>> x = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64)
    >>> one, other = NormalEquations.empty(1, 1), NormalEquations.empty(1, 1)
    >>> one.add(x[:2], 2 * x[:2])
    >>> other.add(x[2:], 2 * x[2:])
    >>> ridge_change([one, other], penalised=1).round(decimals=2).tolist()
    [[2.0]]

    folds: two sets of rows; the penalty that is best for the one when fitted on the other is used for both together. It
        is found in a few random directions of Y, where the order of penalties is the same.
    penalised: how many of the coefficients are penalised, the first ones; an intercept after them is not.
    """
    one, other = folds
    total = NormalEquations(one.gram + other.gram, one.right + other.right, one.rows + other.rows)
    best, least = None, 0.0
    if min(one.rows, other.rows):
        exact = one.sketched(), other.sketched()
        rough = exact[0].single(), exact[1].single()
        for penalty in sorted(penalties, reverse=True):
            first, second = rough if penalty >= WELL_CONDITIONED else exact
            pairs = ((first, second), (second, first))
            error = sum(test.error(_solve(fit, penalised, penalty)) for fit, test in pairs)
            if error < least:
                best, least = penalty, error
            elif best is not None:  # smaller ones overfit more and more
                break
    return torch.zeros_like(total.right) if best is None else _solve(total, penalised, best)


def _solve(normal: NormalEquations, penalised: int, penalty: float) -> Tensor:
    scale = float(normal.gram.diagonal()[:penalised].mean()) if penalised else 0.0
    ridge = torch.zeros(len(normal.gram), dtype=normal.gram.dtype)
    ridge[:penalised] = penalty * max(scale, 1e-12)
    gram = normal.gram + torch.diag(ridge)
    factor, failed = torch.linalg.cholesky_ex(gram)
    return torch.linalg.lstsq(gram, normal.right).solution if failed else torch.cholesky_solve(normal.right, factor)
