"""What an ablated head or neuron puts out instead: zeros, its mean output, or its output on another example.

Another example's output is put in token by token ("resample", and "counterfactual": activation patching). Positions are
aligned from the first token; an example that is shorter starts again from its first token, so position t gets the
output at position t modulo its length. The pairs of "counterfactual" must be of the same length.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.engine import TOKENS, Arrays, Progress, batches_by_length, is_finite, over_shards
from headcount.errors import BadData, HeadcountError, counted
from headcount.evaluation.outcomes import Mask
from headcount.heads import FEED_FORWARD
from headcount.intervene import capture, edited, masked
from headcount.runs import RunDirectory
from headcount.structure import anatomy, device_of, whole_anatomy
from headcount.tasks import Batch, Task

FILLS = ("zero", "mean", "resample", "counterfactual")
DRAWS = 4  # other examples whose outputs take the place of an example's own
COUNT = " tokens"  # after a site's name: over how many tokens its outputs are summed


@dataclass(frozen=True, eq=False)
class Paired:
    """A task's examples, each with the examples that its heads' outputs are taken from, one of each of `donors`."""

    task: Task
    donors: tuple[Task, ...]

    def __len__(self) -> int:
        return len(self.task)

    @property
    def lengths(self) -> Sequence[int]:
        return self.task.lengths

    def subset(self, indices: Sequence[int]) -> Paired:
        return Paired(self.task.subset(indices), tuple(donor.subset(indices) for donor in self.donors))


def resampled(task: Task, draws: int, seed: int) -> Paired:
    """Each example with `draws` others, drawn at random; no example is its own."""
    if len(task) < 2:
        raise HeadcountError("resampling needs at least two examples", advice="give more data, or change {fill}")
    if draws < 1:
        raise HeadcountError(f"draws is {draws}", advice="give {draws} as a number from 1")
    rng = np.random.default_rng(seed)
    donors = []
    for _ in range(draws):
        circle = rng.permutation(len(task))  # each example takes from the next one on it
        other = np.empty(len(task), int)
        other[circle] = np.roll(circle, -1)
        donors.append(task.subset(other.tolist()))
    return Paired(task, tuple(donors))


def counterfactual(task: Task, against: Task) -> Paired:
    """Each example with its corrupted version, the example at the same place; the two must be of the same length."""
    if len(task) != len(against):
        raise BadData(
            f"{counted(len(task), 'example')} cannot be paired with {len(against)}",
            advice="give {against} the same rows in the same order",
        )
    for place in range(len(task)):
        both = [_lengths(one.batch([place])) for one in (against, task)]
        for what, (theirs, own) in zip(("tokens", "tokens of its target"), zip(*both, strict=True), strict=True):
            if theirs != own:
                where, there = (getattr(one, "places", {place: f"example {place}"})[place] for one in (against, task))
                raise BadData(
                    f"{where}: {' and '.join(map(str, theirs))} {what}, but {there} has {' and '.join(map(str, own))}",
                    advice="change {against}: a patched text has as many tokens as its pair",
                )
    return Paired(task, (against,))


def _lengths(batch: Batch) -> tuple[list[int], list[int]]:
    """Tokens of every text of one example, and of its target, if that has tokens."""
    mask, labels = batch.inputs.get("attention_mask"), batch.labels
    first = next(iter(batch.inputs.values()))
    texts = [first.shape[-1]] if mask is None else mask.reshape(-1, mask.shape[-1]).sum(1).tolist()
    return texts, [] if labels is None or labels.ndim < 2 else [labels.shape[1]]


@dataclass(frozen=True, eq=False)
class Donated:
    """What every site put out for the donors of a batch, each time that it ran."""

    examples: int
    calls: Mapping[str, list[tuple[Tensor, Tensor]]]  # (rows, T, units, width); 1 for tokens, 0 for padding: (rows, T)

    def aligned(self, site: str, call: int, own: Tensor) -> Tensor:
        """The donors' outputs for rows and tokens of the batch's own, (rows, T, …): (rows, T, units, width)

        An example of several rows (the choices of a question) takes from its donor's rows in their order.
        """
        outputs, real = self.calls[site][call]
        rows, theirs = len(own) // self.examples, len(outputs) // self.examples  # per example
        row = torch.arange(len(own), device=outputs.device)
        row = row // rows * theirs + row % rows % theirs
        lengths = real.sum(1).long().clamp(min=1)[row, None]  # padding is on the right
        token = torch.arange(own.shape[1], device=outputs.device) % lengths  # (rows, T)
        return outputs[row[:, None], token].to(own)


Fill = Mapping[str, Tensor] | Donated  # by site: (units, width); or as donated


def donated(model: Any, donor: Task, batch: Batch, units: Sequence[str]) -> Donated:
    """Run the model on a batch of donors, and keep what every unit put out; units: at which sites, as of `anatomy`."""
    with capture(model, attention=False, units=units) as seen:
        donor.outputs(model, batch)
    found = anatomy(model, units)
    return Donated(
        len(batch),
        {
            name: [(context, _real_tokens(batch, found.site(name).kind, context, found.kinds)) for context in contexts]
            for name, contexts in seen.contexts.calls.items()
        },
    )


def fill_at(fill: Fill | None, site: str, own: Tensor) -> Tensor | None:
    """What takes the place of the units of a site that runs once, given their own outputs, (rows, T, …).

    (units, width), or (rows, T, units, width); None: zeros.
    """
    return fill.aligned(site, 0, own) if isinstance(fill, Donated) else (fill or {}).get(site)


def filled(model: Any, mask: Mask, fill: Fill | None) -> AbstractContextManager[Any]:
    """The model with the units of a mask off, and the fill in their place."""
    if not isinstance(fill, Donated):
        return masked(model, off=mask, fill=fill)
    found = whole_anatomy(model)
    places: dict[str, list[int]] = {}
    for head in mask:
        places.setdefault(head.site, []).append(found.site(head).places[head.index])
    return edited(model, {site: _swapping(fill, site, there) for site, there in places.items()})


def _swapping(fill: Donated, site: str, places: list[int]) -> Callable[[Tensor], Tensor]:
    """Puts the donors' outputs in the place of some units' own, each time that the site runs in a pass."""
    calls = itertools.count()

    def swap(own: Tensor) -> Tensor:  # (rows, T, units, width), or (rows, T, width) where a site has one unit
        given = fill.aligned(site, next(calls), own)
        if own.ndim == 3:
            return given[:, :, 0]
        changed = own.clone()
        changed[:, :, places] = given[:, :, places]
        return changed

    return swap


def mean_contexts(
    model: Any,
    task: Task,
    tokens: int = TOKENS,
    *,
    units: tuple[str, ...] = ("heads",),
    directory: RunDirectory | None = None,
    name: str = "means",
    signature: str = "",
) -> dict[str, Tensor]:
    """The mean over all tokens, padding left out, of what enters each site's projection: {site: (heads, head_dim)}

    Decoders read the references, so the mean does not depend on any mask.

    tokens: per batch, padding included. units: at which sites, as of `anatomy`. directory, name, signature: as of
        `over_shards`.
    """
    work = ContextSums(tokens, units)
    sums = over_shards(work, model, task, directory=directory, name=name, signature=signature)
    sites = [site for site in sums if f"{site}{COUNT}" in sums]
    return {site: torch.from_numpy(sums[site] / max(float(sums[f"{site}{COUNT}"]), 1.0)).float() for site in sites}


@dataclass(frozen=True)
class ContextSums:
    """Work: for each site the sum of the heads' outputs, (heads, head_dim), and the number of tokens, ()."""

    tokens: int
    units: tuple[str, ...] = ("heads",)

    def summed(self, name: str) -> bool:
        return True

    def fits(self, arrays: Arrays, count: int) -> bool:
        return all(is_finite(array) for array in arrays.values())

    @torch.inference_mode()
    def __call__(self, model: Any, examples: Any, progress: Progress | None = None) -> Arrays:
        sums: dict[str, Any] = {}
        found, device = anatomy(model, self.units), device_of(model)
        for indices in batches_by_length(examples.lengths, self.tokens):
            batch = examples.batch(indices).to(device)
            with capture(model, attention=False, units=self.units) as seen:
                examples.outputs(model, batch)
            for site in found.sites:
                for context in seen.contexts.calls.get(site.name, []):  # (B, T, heads, head_dim)
                    real = _real_tokens(batch, site.kind, context, found.kinds).to(context)  # (B, T)
                    total = torch.einsum("bthd,bt->hd", context, real).double().cpu().numpy()
                    sums[site.name] = sums.get(site.name, 0.0) + total
                    count = f"{site.name}{COUNT}"
                    sums[count] = sums.get(count, 0.0) + np.float64(real.sum().item())
        return {name: np.asarray(total) for name, total in sums.items()}


def _real_tokens(batch: Batch, kind: str, context: Tensor, kinds: Sequence[str]) -> Tensor:
    """1 for tokens, 0 for padding: (B, T); kinds: of all sites of the model"""
    shape, kind = context.shape[:2], kind.removesuffix(FEED_FORWARD)
    mask, labels = batch.inputs.get("attention_mask"), batch.labels
    reads_target = "cross" in kinds and kind in ("decoder", "cross")
    if reads_target and labels is not None and labels.ndim == 2 and (mask is None or labels.shape == shape):
        first = shape[1] - labels.shape[1]  # Whisper's decoder is given more than one token to start with
        return torch.nn.functional.pad(labels != -100, (first, 0), value=True)
    if kind != "cross" and mask is not None and mask.numel() == shape.numel() and mask.shape[-1] == shape[-1]:
        return mask.reshape(shape)  # choices of an example have an axis of their own
    return torch.ones(shape, device=context.device)
