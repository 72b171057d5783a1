"""Make up for removed heads without training and at no cost at run time: change the output projections that stay.

`mean` adds what the removed heads put out on average to the projection's bias. `refit` goes through the sites in the
order in which they run and solves, for each, the ridge regression that makes the heads left reproduce what the whole
model's site put out; the sites before it have been refitted by then, so it also mends what they let through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headcount.anatomy import AttentionSite, anatomy
from headcount.errors import HeadcountError, unknown
from headcount.pruning.calibration import Calibration
from headcount.pruning.ridge import Normal, ridge_change
from headcount.pruning.walk import Walk
from headcount.tasks import Task

HOW = ("none", "mean", "refit")

Model = TypeVar("Model", bound=nn.Module)
Progress = Callable[[float], None]


def compensate(
    pruned: Model,
    whole: nn.Module,
    task: Task,
    how: str = "refit",
    *,
    calibration: Calibration | None = None,
    progress: Progress | None = None,
) -> Model:
    """Change the output projections of a pruned model, in place, so that less is missed; returns the model.

    whole: the model that heads were removed from. task: calibration text; its labels are not looked at.
    how: "none", "mean" or "refit".
    calibration: what `Calibration(whole, task)` has recorded already, to use it several times.
    """
    if how not in HOW:
        raise HeadcountError(unknown("compensation", how, HOW))
    if how == "none":
        return pruned
    seen = calibration or Calibration(whole, task)
    originals = {site.name: site for site in anatomy(whole).sites}
    sites = {site.name: site for site in anatomy(pruned).sites}
    changed = [name for name in seen.order if len(sites[name].kept) < len(originals[name].kept)]
    if not changed:
        return pruned
    if how == "mean":
        _refuse_without_bias([sites[name] for name in changed])
        names = changed
    else:
        names = seen.order[seen.order.index(changed[0]) :]
    walk = Walk(pruned.eval(), seen.task, seen.batches, [sites[name] for name in seen.order])
    for done, name in enumerate(names):
        if how == "mean":
            _fold_mean(sites[name], originals[name], seen)
        elif sites[name].kept or sites[name].output.bias is not None:
            _refit(sites[name], seen, walk)
        if progress is not None:
            progress((done + 1) / len(names))
    return pruned


def _fold_mean(site: AttentionSite, original: AttentionSite, seen: Calibration) -> None:
    """Add the removed heads' mean output (their mean context through their columns) to the bias."""
    weight = _columns(original)  # (d, heads * head_dim)
    mean = seen.mean_context(original.name).clone()  # (heads * head_dim,)
    by_head = mean.view(len(original.kept), original.head_dim)
    by_head[[original.kept.index(index) for index in site.kept]] = 0
    with torch.no_grad():
        site.output.bias += (weight.double() @ mean).to(site.output.bias.dtype)


def _refit(site: AttentionSite, seen: Calibration, walk: Walk) -> None:
    """Change W and b of a site's output projection so that W c_t + b comes close to y_t at every token t.

    c_t: what the heads left put out in the pruned model at token t; y_t: what the whole model's site put out there.
    """
    output: Any = site.output
    has_bias = output.bias is not None
    width = len(site.kept) * site.head_dim
    weight = _columns(site).double().cpu()  # (d, width)
    folds = [Normal.empty(width + has_bias, len(weight)) for _ in range(2)]
    for context, target in seen.pairs(walk, site):  # (n, width), (n, d)
        missing = target - context @ weight.T
        if has_bias:
            missing = missing - output.bias.detach().double().cpu()
            context = torch.cat([context, torch.ones(len(context), 1, dtype=torch.float64)], dim=1)
        half = len(context) // 2
        folds[0].add(context[:half], missing[:half])
        folds[1].add(context[half:], missing[half:])
    change = ridge_change(folds, penalised=width)  # (width [+ 1], d)
    if not bool(change.isfinite().all()):
        raise HeadcountError(f"the regression at {site.name} has no finite solution; use more calibration text")
    with torch.no_grad():
        _add_columns(site, change[:width].T)
        if has_bias:
            output.bias += change[-1].to(output.bias)


def _columns(site: AttentionSite) -> Tensor:
    """The output projection's weight as (d, heads * head_dim), whichever way the module stores it."""
    weight = site.output.weight.detach()
    return weight.T if isinstance(site.output, Conv1D) else weight


def _add_columns(site: AttentionSite, change: Tensor) -> None:
    site.output.weight += (change.T if isinstance(site.output, Conv1D) else change).to(site.output.weight)


def _refuse_without_bias(sites: list[AttentionSite]) -> None:
    bare = [site.name for site in sites if site.output.bias is None]
    if bare:
        raise HeadcountError(
            f"the output projection of {bare[0]} has no bias that a mean could be added to; compensate with refit"
        )
