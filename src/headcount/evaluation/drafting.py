"""Drafted decoding: under most masks most outputs stay as they are, so verify them instead of decoding again.

The unmasked model's own greedy output is the draft. Under each mask it is verified in one teacher-forced pass, replayed
from the masked site. As far as the mask's own choices agree with the draft, it is what the mask would have written.
Only from the first disagreement on is anything decoded, for all masks together. The result is exactly greedy.

Verification looks at as few logits as can decide. A logit is w_i h + b_i. Where a mask moves the last hidden state h by
dh, no candidate i can overtake the chosen y unless `margin < |dh| max_i |w_y - w_i|`. Positions with a larger margin
need not be projected on the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headcount.evaluation.decoding import (
    Continuation,
    PartialOutput,
    after_disagreement,
    end_tokens,
    prepare,
    read,
    written_outputs,
)
from headcount.evaluation.outcomes import TIE, Mask
from headcount.evaluation.recording import record
from headcount.evaluation.replay import Replay, mask_values
from headcount.structure import Anatomy
from headcount.tasks import Batch, DraftingTask

MEMORY = 2**28  # bytes for the logits of one verification


def drafted_outputs(
    model: Any,
    task: DraftingTask,
    found: Anatomy,
    batch: Batch,
    masks: Mapping[str, list[Mask]],
    stacked: int,
    fill: Mapping[str, Tensor] | None = None,
) -> tuple[dict[Mask, Tensor], int]:
    """The token ids that the model writes under every mask, (B, T), and how many choices were near ties.

    masks: by the site whose heads they turn off; the whole model, which writes the draft, is always among the outputs.
    stacked: how many tokens to verify at a time, padding included.
    """
    draft = make_draft(model, task, batch)
    recording = record(found, len(batch), lambda: refer(model, task, batch, draft))
    reference: Reference = recording.result
    outputs: dict[Mask, Tensor] = {frozenset(): draft.ids}
    partial_outputs: list[PartialOutput] = []
    near_ties = 0
    width = recording.inputs[recording.layers[0]].shape[1]  # by the encoder, in tokens or frames
    copies = _masks_at_a_time(model, draft, width, stacked)
    for name, of_site in masks.items():
        replay = Replay(model, found, recording, found.site(name), fill=(fill or {}).get(name))
        for first in range(0, len(of_site), copies):
            some = of_site[first : first + copies]
            xi = mask_values(found, some, draft.ids.device)
            verdict = replay.run(xi, partial(verify, model, task, batch.repeat(len(some)), draft, reference))
            near_ties += verdict.near_ties()
            outputs.update(dict.fromkeys(some, draft.ids))
            partial_outputs.extend(_disagreements(draft, verdict, some, xi))
    finished, ties = Continuation(model, task, batch, fill).finish(partial_outputs)
    for output in finished:
        outputs[output.mask] = _with_row(outputs[output.mask], output.place, output.tokens, task.pad)
    return outputs, near_ties + ties


def can_draft(model: Any, task: Any) -> bool:
    """Whether the task lets its decoding be taken apart, and no logits processor of the model depends on the source."""
    settings = getattr(model, "generation_config", None)
    of_source = ("encoder_no_repeat_ngram_size", "encoder_repetition_penalty")
    return bool(getattr(task, "drafts", False)) and not any(
        getattr(settings, name, None) not in (None, 0, 1.0) for name in of_source
    )


@dataclass(frozen=True, eq=False)
class Draft:
    """What the unmasked model writes for a batch."""

    ids: Tensor  # (B, T)
    limits: Tensor  # (B,)
    needed: Tensor  # (B,), how many tokens count

    @property
    def asked(self) -> Tensor:
        """The positions that count: (B, T)"""
        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.needed[:, None]


def make_draft(model: Any, task: DraftingTask, batch: Batch) -> Draft:
    """Let the model write, greedily."""
    ids, _ = written_outputs(model, task, batch)
    limits = torch.tensor(task.limits(model, batch.indices), device=ids.device)
    return Draft(ids, limits, tokens_needed(ids, limits, end_tokens(model).to(ids.device)))


def tokens_needed(draft: Tensor, limits: Tensor, ends: Tensor) -> Tensor:
    """How many tokens of each draft count: up to its end token, or to its limit: (B,)

    >>> tokens_needed(torch.tensor([[5, 1, 0], [5, 6, 7]]), torch.tensor([9, 2]), torch.tensor([1])).tolist()
    [2, 2]
    """
    position = torch.arange(draft.shape[1], device=draft.device)
    ended = torch.isin(draft, ends) & (position < limits[:, None])
    until_end = torch.where(ended.any(dim=1), ended.int().argmax(dim=1) + 1, draft.shape[1])
    return torch.minimum(until_end, limits)


@dataclass(frozen=True, eq=False)
class Reference:
    """The unmasked model's pass over its own draft, with which a masked pass is compared."""

    hidden: Tensor  # (B, T, hidden), the last hidden states
    margin: Tensor  # (B, T), how far the logit of the draft's token is ahead of the next best
    reach: Tensor  # (B, T), max_i |w_y - w_i| for the draft's token y

    def may_change(self, hidden: Tensor) -> Tensor:
        """Where another token could be the best one, given the hidden states of M masks: (M * B, T)"""
        copies = len(hidden) // len(self.hidden)
        moved = (hidden - self.hidden.repeat(copies, 1, 1)).norm(dim=-1)  # |dh|
        return ~(moved * self.reach.repeat(copies, 1) < self.margin.repeat(copies, 1) - TIE)


def refer(model: Any, task: DraftingTask, batch: Batch, draft: Draft) -> Reference:
    """Read the draft with the model as it is."""
    asked = draft.asked
    reading = read(model, prepare(model, task, batch), draft.ids, lambda hidden: asked)
    top = reading.logits.gather(1, reading.best[:, None])[:, 0]
    second = reading.logits.scatter(1, reading.best[:, None], -torch.inf).amax(dim=1)
    margin = torch.zeros(draft.ids.shape, device=draft.ids.device)
    margin[asked] = torch.where(reading.best == draft.ids[asked], top - second, 0.0)
    tokens, place = draft.ids.unique(return_inverse=True)
    return Reference(reading.hidden, margin, _reach(model.get_output_embeddings(), tokens)[place])


def _reach(head: nn.Module, tokens: Tensor) -> Tensor:
    """max_i |w_y - w_i| for every token y."""
    weight: Any = head.weight  # (V, hidden)
    square = weight.square().sum(dim=1)
    distance = square[tokens, None] + square - 2 * weight[tokens] @ weight.T
    return distance.amax(dim=1).clamp(min=0).sqrt() * (1 + 1e-5)


@dataclass(frozen=True, eq=False)
class Verdict:
    """What the model would write under M masks at every position of the draft, as long as it has agreed with it."""

    chosen: Tensor  # (M * B, T); the draft's own token where that does not count or cannot have changed
    tied: Tensor  # (M * B, T), whether the choice was a near tie
    agreed: Tensor  # (M * B,), how many tokens are the draft's
    differs: Tensor  # (M * B,), whether the one after these is another
    encoded: Tensor  # (M * B, S, hidden), what the encoder made of the sources

    def near_ties(self) -> int:
        """Outputs with a near tie among the choices that were made."""
        position = torch.arange(self.tied.shape[1], device=self.tied.device)
        return int((self.tied & (position <= self.agreed[:, None])).any(dim=1).sum())


def verify(model: Any, task: DraftingTask, many: Batch, draft: Draft, reference: Reference) -> Verdict:
    """Read the draft under M masks, which must be in force: `many` is the batch stacked M times."""
    copies = len(many) // len(draft.ids)
    ids, asked, needed = draft.ids.repeat(copies, 1), draft.asked.repeat(copies, 1), draft.needed.repeat(copies)
    prepared = prepare(model, task, many)
    certain = not prepared.processors  # a processor must see every candidate
    reading = read(model, prepared, ids, lambda hidden: asked & reference.may_change(hidden) if certain else asked)
    chosen, tied = ids.clone(), torch.zeros_like(asked)
    chosen[reading.look], tied[reading.look] = reading.best, reading.tied
    differs = chosen != ids  # only where asked
    agreed = torch.where(differs.any(dim=1), differs.int().argmax(dim=1), needed)
    return Verdict(chosen, tied, agreed, differs.any(dim=1), prepared.encoded)


def _disagreements(draft: Draft, verdict: Verdict, masks: list[Mask], xi: Tensor) -> Iterator[PartialOutput]:
    """The outputs that are not the draft, as far as they are decided."""
    for at in verdict.differs.nonzero()[:, 0].tolist():
        copy, place = divmod(at, len(draft.ids))
        agreed = int(verdict.agreed[at])
        ids, chosen = draft.ids[place, : draft.needed[place]], verdict.chosen[at, agreed]
        yield PartialOutput(
            mask=masks[copy],
            xi=xi[copy],
            place=place,
            tokens=torch.cat([ids[:agreed], chosen[None]]),
            guess=after_disagreement(ids, agreed, chosen),
            limit=int(draft.limits[place]),
            encoded=verdict.encoded[at].clone(),
        )


def _masks_at_a_time(model: Any, draft: Draft, read: int, stacked: int) -> int:
    """As many as neither exceed the budget of tokens nor that of memory for logits."""
    size, length = draft.ids.shape
    vocabulary = model.get_output_embeddings().weight.shape[0]
    return max(1, min(stacked // (size * max(length, read)), MEMORY // (4 * size * length * vocabulary)))


def _with_row(ids: Tensor, place: int, tokens: Tensor, pad: int) -> Tensor:
    """The outputs with one row replaced, wider where it needs to be."""
    width = max(ids.shape[1], len(tokens))
    wider = nn.functional.pad(ids, (0, width - ids.shape[1]), value=pad).clone()
    wider[place] = pad
    wider[place, : len(tokens)] = tokens
    return wider
