"""Drafted decoding: under most masks most translations stay as they are, so verify instead of decoding again.

The unmasked model's own greedy output is the draft. Under each mask it is verified in one teacher-forced pass,
replayed from the masked site; as far as the mask's own choices agree with it, the draft is what the mask would have
written. Only from the first disagreement on is anything decoded, for all masks together. The result is exactly greedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headcount.evaluation.continuation import Continuation, Row, after_disagreement
from headcount.evaluation.outcomes import Mask
from headcount.evaluation.recording import record
from headcount.evaluation.replay import Replay, mask_values
from headcount.evaluation.verification import Verdict, Verifier
from headcount.structure import Anatomy
from headcount.tasks import Batch

MEMORY = 2**28  # bytes for the logits of one verification


class Drafting:
    """The translations of one batch under many masks."""

    def __init__(
        self,
        model: Any,
        task: Any,
        found: Anatomy,
        batch: Batch,
        stacked: int,
        fill: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.model, self.task, self.found, self.batch = model, task, found, batch
        self.stacked, self.fill = stacked, fill
        self.near_ties = 0
        self.draft = task.decode(model, batch)  # (B, T)
        self.statistics = task.statistics(self.draft, batch)
        self.limits = torch.tensor(task.limits(model, batch.indices), device=self.draft.device)  # (B,)
        self.needed = tokens_needed(self.draft, self.limits, end_marks(model).to(self.draft.device))  # (B,)

    def sweep(self, replayed: dict[str, list[Mask]]) -> Iterator[tuple[Mask, Tensor]]:
        """Statistics (B, S) of every mask."""
        verify = Verifier(self.model, self.task, self.draft, self.needed)
        seen = record(self.found, len(self.batch), lambda: verify(self.batch))
        replay = Replay(self.model, self.found, seen, fill=self.fill)
        outputs: dict[Mask, Tensor] = {}
        changed: list[Row] = []
        copies = self._copies()
        for name, masks in replayed.items():
            for start in range(0, len(masks), copies):
                some = masks[start : start + copies]
                many = self.batch.repeat(len(some))
                xi = mask_values(self.found, some, self.draft.device)
                verdict = replay.run(self.found.site(name), xi, partial(verify, many))
                outputs.update(dict.fromkeys(some, self.draft))
                changed.extend(self._changed(some, xi, verdict))
        rest = Continuation(self.model, self.task, self.batch, self.fill)
        for row, written in rest.finish(changed):
            outputs[row.mask] = _with_row(outputs[row.mask], row.place, written, self.task.pad)
        self.near_ties += rest.near_ties
        for mask, ids in outputs.items():
            yield mask, self.statistics if ids is self.draft else self.task.statistics(ids, self.batch)

    def _copies(self) -> int:
        """How many masks to verify at a time, so that neither tokens nor logits exceed their budgets."""
        size, length = self.draft.shape
        vocabulary = self.model.get_output_embeddings().weight.shape[0]
        widest = max(length, *(tensor.shape[1] for tensor in self.batch.inputs.values()))
        return max(1, min(self.stacked // (size * widest), MEMORY // (4 * size * length * vocabulary)))

    def _changed(self, masks: list[Mask], xi: Tensor, verdict: Verdict) -> Iterator[Row]:
        """The rows where a mask disagrees with the draft, as far as they are decided."""
        copies, size = len(masks), len(self.batch)
        needed = self.needed.repeat(copies)
        position = torch.arange(self.draft.shape[1], device=self.draft.device)
        asked = position < needed[:, None]  # (M * B, T)
        differs = (verdict.chosen != self.draft.repeat(copies, 1)) & asked
        first = torch.where(differs.any(dim=1), differs.int().argmax(dim=1), needed)  # (M * B,)
        self.near_ties += int((verdict.tied & asked & (position <= first[:, None])).any(dim=1).sum())
        for at in differs.any(dim=1).nonzero()[:, 0].tolist():
            copy, place = divmod(at, size)
            end = int(first[at])
            draft, chosen = self.draft[place, : self.needed[place]], verdict.chosen[at, end]
            prefix = torch.cat([draft[:end], chosen[None]])
            guess = after_disagreement(draft, end, chosen)
            limit, encoded = int(self.limits[place]), verdict.encoded[at].clone()
            yield Row(masks[copy], xi[copy], place, prefix, guess, limit, encoded)


def end_marks(model: Any) -> Tensor:
    """The tokens that end a text."""
    end = model.generation_config.eos_token_id
    return torch.tensor([] if end is None else end, dtype=torch.long).reshape(-1)


def tokens_needed(draft: Tensor, limits: Tensor, ends: Tensor) -> Tensor:
    """How many tokens of each draft count: up to its end mark, or to its limit: (B,)

    >>> tokens_needed(torch.tensor([[5, 1, 0], [5, 6, 7]]), torch.tensor([9, 2]), torch.tensor([1])).tolist()
    [2, 2]
    """
    position = torch.arange(draft.shape[1], device=draft.device)
    ended = torch.isin(draft, ends) & (position < limits[:, None])
    until_end = torch.where(ended.any(dim=1), ended.int().argmax(dim=1) + 1, draft.shape[1])
    return torch.minimum(until_end, limits)


def _with_row(ids: Tensor, place: int, written: Tensor, pad: int) -> Tensor:
    """The outputs with one row replaced, wider where it needs to be."""
    width = max(ids.shape[1], len(written))
    wider = torch.nn.functional.pad(ids, (0, width - ids.shape[1]), value=pad)
    wider = wider.clone() if wider is ids else wider
    wider[place] = pad
    wider[place, : len(written)] = written
    return wider
