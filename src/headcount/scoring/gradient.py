"""M19's importance: the gradient of each example's loss with respect to the mask xi of each head, neuron or sublayer.

One leaf `xi[example, unit]` per site and one backward pass of the summed loss give every example's own gradient for
every unit, since an example's loss depends on its own row of xi alone. The parameters are frozen and get no gradients,
so a pass costs less than a training step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from headcount.errors import HeadcountError, unknown
from headcount.heads import Head
from headcount.scoring.per_example import PassOptions, collect, needs_task_head, units_to_score
from headcount.structure import AttentionSite, FeedForwardSite, Site, anatomy, device_of
from headcount.tasks import Batch, Task, digest

if TYPE_CHECKING:
    from typing_extensions import Unpack

PER = ("example", "token", "batch")
BATCH = 32  # examples, in the order of the data
Units = str | Iterable[str]  # heads, neurons, sublayers


def gradient(
    model: nn.Module,
    task: Task,
    *,
    units: Units = "heads",
    per: str = "example",
    batch: int = BATCH,
    **how: Unpack[PassOptions],
) -> np.ndarray:
    """I_u = E_x |dL(x)/dxi_u| (M19 eq. 2), its terms: (examples, units), or with neurons among them (1, units).

    per: what the absolute value is taken of. "example" is the paper's; "token" takes it for each token and sums over
        the tokens, as the authors' code does; "batch" takes it of the mean over `batch` examples, as public toolkits
        do: gradients of opposite sign cancel out. The last two are for heads.
    how: the options of the pass.
    """
    if per not in PER:
        raise HeadcountError(unknown("per", per, PER))
    asked = anatomy(model, units).asked
    if per != "example" and asked != ("heads",):
        raise HeadcountError(
            f"per={per!r} scores attention heads only, not {' and '.join(asked)}",
            advice="choose {per} example, or {units} heads",
        )
    if per == "token":
        return collect(model, task, _token_sums, what="gradient", **how)
    if "neurons" in asked:
        return unit_moments(model, task, asked, **how).absolute[None]
    signed = head_gradients(model, task, units=asked, **how)
    if per == "example":
        return np.abs(signed)
    starts = np.arange(0, len(signed), batch)
    sizes = np.diff([*starts, len(signed)])[:, None]
    return np.abs(np.add.reduceat(signed, starts, axis=0) / sizes)  # (batches, H)


def fisher(model: nn.Module, task: Task, *, units: Units = "heads", **how: Unpack[PassOptions]) -> np.ndarray:
    """The diagonal of the empirical Fisher information, E_x (dL(x)/dxi_u)^2: its terms, as for `gradient`."""
    asked = anatomy(model, units).asked
    if "neurons" in asked:
        return unit_moments(model, task, asked, **how).squares[None]
    return head_gradients(model, task, units=asked, **how) ** 2


def head_gradients(
    model: nn.Module,
    task: Task,
    *,
    units: Units = "heads",
    residuals: Mapping[str, Residual] | None = None,
    **how: Unpack[PassOptions],
) -> np.ndarray:
    """dL(x)/dxi_u at xi = 1 for every example x and unit u, signed: (examples, units).

    >>> from headcount.tasks.classification import toy_classifier
    >>> head_gradients(*toy_classifier()).shape
    (2, 8)

    units: as for `anatomy`. For neurons, of which there are many thousands, take `unit_moments`. residuals: as there.
    """
    asked = anatomy(model, units).asked
    found = units_to_score(model, asked)
    of_batch = partial(_example_gradients, units=asked, residuals=residuals)
    columns = "" if asked == ("heads",) else digest(list(map(str, found)))
    return collect(model, task, of_batch, what="gradient", signature=columns, **how)


@dataclass(frozen=True, eq=False)
class Moments:
    """Of the gradient g_u(x) = dL(x)/dxi_u of every unit u, over the examples x; each array is (units,), float64.

    units: in the order of `anatomy(model, units).units`. examples: how many. absolute: E|g|, M19's importance.
    squares: E g^2, the diagonal of the empirical Fisher information. mean: E g.
    """

    units: tuple[Head | str, ...]
    examples: int
    absolute: np.ndarray
    squares: np.ndarray
    mean: np.ndarray


@dataclass(frozen=True, eq=False)
class Residual:
    """The part of the units' outputs c at a site that is to be taken out, row by row: `(c - mean) @ matrix`.

    matrix: (width, width). mean: (width,).
    """

    matrix: Tensor
    mean: Tensor

    def __call__(self, context: Tensor) -> Tensor:
        return (context - self.mean.to(context)) @ self.matrix.to(context)


def unit_moments(
    model: nn.Module,
    task: Task,
    units: Units = "heads",
    *,
    residuals: Mapping[str, Residual] | None = None,
    **how: Unpack[PassOptions],
) -> Moments:
    """The moments of the gradients of all units: exact per-example gradients, of which only sums are kept.

    >>> from headcount.tasks.classification import toy_classifier
    >>> moments = unit_moments(*toy_classifier(), units=["heads", "neurons", "sublayers"])
    >>> moments.examples, moments.units[-1], bool((moments.squares >= moments.absolute**2).all())
    (2, 'encoder_ffn.1', True)

    units: "heads", "neurons", "sublayers" or several, as for `anatomy`. The gradient of a sublayer is the sum of those
        of its heads or neurons.
    residuals: by site, what of its outputs to take out: the gradient is then with respect to that part of a head or
        neuron alone. A sublayer is always taken out as a whole.
    how: the options of the pass; the memory does not grow with the number of examples.
    """
    asked = anatomy(model, units).asked
    found = units_to_score(model, asked)
    of_batch = partial(_example_gradients, units=asked, residuals=residuals)
    columns = digest(list(map(str, found)))
    sums = collect(model, task, of_batch, what="gradient", sums=True, signature=columns, **how)
    mean, absolute, squares = sums / len(task)
    return Moments(found, len(task), absolute, squares, mean)


def _example_gradients(
    model: Any, task: Task, batch: Batch, *, units: Units, residuals: Mapping[str, Residual] | None = None
) -> Tensor:
    """(B, units)"""
    found = anatomy(model, units)
    sites = [site for site in found.sites if site.kept]
    masks = [
        (site, what, torch.ones(len(batch), columns, device=device_of(model), requires_grad=True))
        for what in found.asked
        for site in sites
        if what in ("sublayers", _unit_of(site))
        for columns in [1 if what == "sublayers" else len(site.kept)]
    ]
    with ExitStack() as stack:
        for site, what, leaf in masks:
            part = None if what == "sublayers" else (residuals or {}).get(site.name)
            stack.callback(site.output.register_forward_pre_hook(_with_mask(site, leaf, part)).remove)
        loss = _loss(model, task, batch)
    # A site may not run on this data, such as the vision part of a model that is given text alone.
    leaves = [leaf for _, _, leaf in masks]
    return torch.cat(torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True), dim=1)


def _unit_of(site: Site) -> str:
    return "neurons" if isinstance(site, FeedForwardSite) else "heads"


def _with_mask(site: Site, leaf: Tensor, residual: Residual | None = None) -> Any:
    def hook(projection: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        rows, examples = args[0].shape[0], len(leaf)
        if rows % examples:
            raise HeadcountError(
                f"{site.name} ran on a batch of {rows}, not a multiple of the {examples} examples, "
                "so that its gradients cannot be told apart by example"
            )
        return (_Masked.apply(args[0], leaf.to(args[0].device), residual), *args[1:])

    return hook


class _Masked(torch.autograd.Function):
    """Multiplication by xi = 1: nothing to compute forward, and dL/dxi = sum(context * dL/dcontext) backward.

    With a residual, xi multiplies that part of the context alone: dL/dxi = sum(residual(context) * dL/dcontext).
    """

    @staticmethod
    def forward(ctx: Any, context: Tensor, xi: Tensor, residual: Residual | None) -> Tensor:
        ctx.save_for_backward(context)
        ctx.xi_shape, ctx.residual = xi.shape, residual
        return context.view_as(context)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        (context,), (gradient,) = ctx.saved_tensors, gradients
        examples, units = ctx.xi_shape
        if ctx.residual is not None:
            context = ctx.residual(context)
        # The rows of an example lie together: (B, T, …), with beams (B * beams, T, …), OPT's layers (B * T, …).
        product = (context * gradient).reshape(examples, -1, units, context.shape[-1] // units)
        xi = product.sum((1, 3), dtype=torch.float32)  # (B, units)
        return gradient if ctx.needs_input_grad[0] else None, xi, None


def _token_sums(model: Any, task: Task, batch: Batch) -> Tensor:
    """(B, heads), absolute values summed over the tokens"""
    return token_gradients(model, lambda: _loss(model, task, batch)).abs().sum(1)


def _loss(model: Any, task: Task, batch: Batch) -> Tensor:
    with needs_task_head(model, "loss to take the gradient of"):
        losses = getattr(task, "score_losses", task.losses)  # without labels, the loss itself has no gradient
        loss = losses(task.outputs(model, batch), batch).sum()
    if not loss.requires_grad:
        raise HeadcountError(f"the loss of {type(model).__name__} is not differentiable with respect to its heads")
    return loss


def token_gradients(model: nn.Module, loss: Callable[[], Tensor]) -> Tensor:
    """dL/dxi of every example, token and head, (B, T, heads); shorter sites are padded with zeros to the longest.

    loss: runs the model once, with parameters frozen, and returns the loss summed over the examples.
    """
    leaves: dict[str, list[Tensor]] = {}
    sites = [site for site in anatomy(model).sites if site.kept]
    with ExitStack() as stack:
        for site in sites:
            stack.callback(site.output.register_forward_pre_hook(_with_leaf(site, leaves)).remove)
        total = loss()
    flat = [leaf for site in sites for leaf in leaves[site.name]]
    gradients = iter(torch.autograd.grad(total, flat))
    # ALBERT runs one site several times: a head's gradient at a token is the sum over its runs.
    by_site = [sum((next(gradients) for _ in leaves[site.name]), torch.tensor(0.0)) for site in sites]
    longest = max(part.shape[1] for part in by_site)
    padded = [nn.functional.pad(part, (0, 0, 0, longest - part.shape[1])) for part in by_site]
    return torch.cat(padded, dim=-1)


def _with_leaf(site: AttentionSite, leaves: dict[str, list[Tensor]]) -> Any:
    def hook(projection: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        by_head = args[0].unflatten(-1, (len(site.kept), site.head_dim))  # (B, T, heads, head_dim)
        leaf = torch.ones(by_head.shape[:-1], dtype=by_head.dtype, device=by_head.device, requires_grad=True)
        leaves.setdefault(site.name, []).append(leaf)
        return ((by_head * leaf[..., None]).flatten(-2), *args[1:])

    return hook
