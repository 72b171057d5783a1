"""Drafted decoding: under most masks most translations stay as they are, so verify instead of decoding again.

The unmasked model's own greedy output is the draft. Under each mask it is verified in one teacher-forced pass, replayed
from the masked site; as far as the mask's own choices agree with it, the draft is what the mask would have written. Only
from the first disagreement on is anything decoded, for all masks together. The result is exactly greedy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headcount.anatomy import Anatomy
from headcount.evaluate.continuation import Continuation, choices
from headcount.evaluate.outcomes import Mask
from headcount.evaluate.recording import record
from headcount.evaluate.replay import Replay, mask_values
from headcount.tasks import Batch, Task

MEMORY = 2**28  # bytes for the logits of one verification


class Speaker:
    """Looks like the model to `task.decode`, but generates by a loop of ours, given all that `generate` prepares."""

    def __init__(self, model: Any, loop: Any) -> None:
        self._model, self._loop = model, loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate(self, **options: Any) -> Tensor:
        return self._model.generate(**options, custom_generate=self._loop)


class Drafting:
    """The translations of one batch under many masks."""

    def __init__(self, model: Any, task: Task, found: Anatomy, batch: Batch, stacked: int) -> None:
        self.model, self.task, self.found, self.batch, self.stacked = model, task, found, batch, stacked
        self.near_ties = 0
        self.draft = task.decode(model, batch)  # (B, T)
        self.statistics = task.statistics(self.draft, batch)
        self.limits = torch.tensor(task.limits(model, batch.indices))  # type: ignore[attr-defined]
        self.ends = _ends(model)
        self.needed = _tokens_needed(self.draft, self.limits, self.ends)  # (B,)

    def sweep(self, replayed: dict[str, list[Mask]]) -> Iterator[tuple[Mask, Tensor]]:
        """Statistics (B, S) of every mask."""
        seen = record(self.found, len(self.batch), lambda: self._verify(self.batch))
        replay = Replay(self.model, self.found, seen)
        outputs: dict[Mask, Tensor] = {}
        rest = Continuation(self.model, self.task, self.found, self.batch, self.ends, self.stacked)
        for name, masks in replayed.items():
            copies = self._copies()
            for start in range(0, len(masks), copies):
                some = masks[start : start + copies]
                many = self.batch.repeat(len(some))
                xi = mask_values(self.found, some, self.draft.device)
                chosen, tied, encoded = replay.run(
                    self.found.site(name), xi, lambda many=many: self._verify(many)
                )
                self._compare(some, xi, chosen, tied, encoded, outputs, rest)
        for mask, row, written in rest.finish():
            outputs[mask] = _widened(outputs[mask], len(written), self.task.pad)  # type: ignore[attr-defined]
            outputs[mask][row] = self.task.pad  # type: ignore[attr-defined]
            outputs[mask][row, : len(written)] = written
        self.near_ties += rest.near_ties
        for mask, ids in outputs.items():
            yield mask, self.task.statistics(ids, self.batch)

    def _copies(self) -> int:
        size, length = self.draft.shape
        vocabulary = self.model.get_output_embeddings().weight.shape[0]
        tokens = max(size * length, size * self.batch.inputs["attention_mask"].shape[1])
        return max(1, min(self.stacked // tokens, MEMORY // (4 * size * length * vocabulary)))

    def _verify(self, many: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """What the model would have chosen at every position of the draft, whether it was close, and the encoding."""
        result: list[Any] = []

        def loop(model: Any, input_ids: Tensor, logits_processor: Any, **kwargs: Any) -> Tensor:
            draft = self.draft.repeat(len(input_ids) // len(self.draft), 1)
            fed = torch.cat([input_ids, draft[:, :-1]], dim=1)  # (M * B, T)
            given = {name: kwargs[name] for name in ("encoder_outputs", "attention_mask") if name in kwargs}
            logits = model(decoder_input_ids=fed, use_cache=False, **given).logits  # (M * B, T, V)
            first = input_ids.shape[1]
            for position in range(fed.shape[1] - first + 1) if len(logits_processor) else ():
                before = fed[:, : first + position]
                logits[:, first + position - 1] = logits_processor(before, logits[:, first + position - 1])
            chosen, tied = choices(logits[:, first - 1 :])
            result.extend((chosen, tied, kwargs["encoder_outputs"].last_hidden_state))
            return torch.cat([input_ids, draft], dim=1)

        self.task.decode(Speaker(self.model, loop), many)
        return tuple(result)  # type: ignore[return-value]

    def _compare(
        self,
        masks: list[Mask],
        xi: Tensor,
        chosen: Tensor,
        tied: Tensor,
        encoded: Tensor,
        outputs: dict[Mask, Tensor],
        rest: Continuation,
    ) -> None:
        """Keep the draft where the mask agrees with it; hand on what must be continued."""
        copies, size = len(masks), len(self.batch)
        position = torch.arange(chosen.shape[1], device=chosen.device)
        asked = position < self.needed.repeat(copies)[:, None]  # (M * B, T)
        differs = (chosen != self.draft.repeat(copies, 1)) & asked
        diverged = differs.any(dim=1)
        first = torch.where(diverged, differs.int().argmax(dim=1), self.needed.repeat(copies))  # (M * B,)
        self.near_ties += int((tied & (position <= first[:, None]) & asked).any(dim=1).sum())
        for copy, mask in enumerate(masks):
            outputs[mask] = self.draft.clone()
            for row in diverged[copy * size : (copy + 1) * size].nonzero()[:, 0].tolist():
                at = copy * size + row
                end = int(first[at])
                prefix = torch.cat([self.draft[row, :end], chosen[at, end : end + 1]])
                rest.add(mask, xi[copy], row, prefix, int(self.limits[row]), encoded[at])


def _ends(model: Any) -> Tensor:
    end = model.generation_config.eos_token_id
    return torch.tensor([] if end is None else end, dtype=torch.long).reshape(-1)


def _tokens_needed(draft: Tensor, limits: Tensor, ends: Tensor) -> Tensor:
    """How many tokens of each draft count: up to its end mark, or its limit: (B,)"""
    position = torch.arange(draft.shape[1], device=draft.device)
    ended = torch.isin(draft, ends.to(draft.device)) & (position < limits.to(draft.device)[:, None])
    until_end = torch.where(ended.any(dim=1), ended.int().argmax(dim=1) + 1, draft.shape[1])
    return torch.minimum(until_end, limits.to(draft.device))


def _widened(ids: Tensor, width: int, pad: int) -> Tensor:
    return ids if ids.shape[1] >= width else torch.nn.functional.pad(ids, (0, width - ids.shape[1]), value=pad)
