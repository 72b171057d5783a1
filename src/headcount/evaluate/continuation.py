"""Decode what verification left over: sentences that changed, each under its own mask, in large batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from headcount.anatomy import Anatomy
from headcount.evaluate.outcomes import Mask
from headcount.mask import masked
from headcount.tasks import Batch, Task

TIE = 1e-4
ROWS = 512  # sentences that are continued together


def choices(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The best candidate at every position, and whether another lay within 1e-4 of it: (…, V) to (…), (…)"""
    best, chosen = logits.max(dim=-1)
    return chosen, (logits > (best - TIE)[..., None]).sum(dim=-1) > 1


@dataclass
class _Row:
    mask: Mask
    xi: Tensor  # (heads,)
    row: int  # in the batch
    prefix: Tensor  # what is decided already
    limit: int
    encoded: Tensor  # (S, hidden)


class Continuation:
    """Rows that go on after their prefix; `finish` decodes them all."""

    def __init__(
        self, model: Any, task: Task, found: Anatomy, batch: Batch, ends: Tensor, stacked: int
    ) -> None:
        self.model, self.task, self.found, self.batch = model, task, found, batch
        self.ends = ends
        self.rows: list[_Row] = []
        self.near_ties = 0

    def add(self, mask: Mask, xi: Tensor, row: int, prefix: Tensor, limit: int, encoded: Tensor) -> None:
        self.rows.append(_Row(mask, xi, row, prefix, limit, encoded))

    def finish(self) -> Iterator[tuple[Mask, int, Tensor]]:
        """The whole output of every row: its mask, its place in the batch, its tokens."""
        ended = [row for row in self.rows if len(row.prefix) >= row.limit or row.prefix[-1] in self.ends]
        for row in ended:
            yield row.mask, row.row, row.prefix
        open_rows = [row for row in self.rows if not (len(row.prefix) >= row.limit or row.prefix[-1] in self.ends)]
        open_rows.sort(key=lambda row: (len(row.prefix), row.limit))
        for start in range(0, len(open_rows), ROWS):
            some = open_rows[start : start + ROWS]
            for row, written in zip(some, self._decode(some), strict=True):
                yield row.mask, row.row, written

    def _decode(self, rows: list[_Row]) -> list[Tensor]:
        places = [row.row for row in rows]
        inputs: dict[str, Any] = {name: tensor[places] for name, tensor in self.batch.inputs.items()}
        inputs["encoder_outputs"] = BaseModelOutput(last_hidden_state=torch.stack([row.encoded for row in rows]))
        many = replace(self.batch, inputs=inputs, labels=None, indices=tuple(self.batch.indices[i] for i in places))
        written: list[Tensor] = []

        def loop(model: Any, input_ids: Tensor, logits_processor: Any, **kwargs: Any) -> Tensor:
            written.extend(self._steps(model, rows, input_ids, logits_processor, kwargs))
            return input_ids

        from headcount.evaluate.drafting import Speaker

        self.task.decode(Speaker(self.model, loop), many)
        return written

    def _steps(
        self, model: Any, rows: list[_Row], start: Tensor, processors: Any, kwargs: dict[str, Any]
    ) -> list[Tensor]:
        """Step by step with a cache; rows that have ended leave the batch."""
        known = min(len(row.prefix) for row in rows)
        width = max(row.limit for row in rows)
        written = start.new_full((len(rows), width), 0)
        for place, row in enumerate(rows):
            written[place, : len(row.prefix)] = row.prefix
        prefixes = torch.tensor([len(row.prefix) for row in rows], device=start.device)
        limits = torch.tensor([row.limit for row in rows], device=start.device)
        lengths = limits.clone()
        alive = torch.arange(len(rows), device=start.device)
        given = {name: kwargs[name] for name in ("encoder_outputs", "attention_mask") if name in kwargs}
        cache, fed, position = None, torch.cat([start, written[:, :known]], dim=1), known
        ends = self.ends.to(start.device)
        xi = torch.stack([row.xi for row in rows])
        while len(alive):
            with masked(model, xi=xi[alive]):
                while True:
                    output = model(decoder_input_ids=fed, past_key_values=cache, use_cache=True, **given)
                    cache = output.past_key_values
                    before = torch.cat([start[alive], written[alive, :position]], dim=1)
                    scores = processors(before, output.logits[:, -1].float())
                    chosen, tied = choices(scores)
                    forced = position < prefixes[alive]
                    chosen = torch.where(forced, written[alive, position], chosen)
                    self.near_ties += int((tied & ~forced).sum())
                    written[alive, position] = chosen
                    position += 1
                    ended = torch.isin(chosen, ends) & ~forced
                    lengths[alive[ended]] = position
                    ended |= position >= limits[alive]
                    fed = chosen[:, None]
                    if bool(ended.any()):
                        break
            keep = (~ended).nonzero()[:, 0]
            alive, fed = alive[keep], fed[keep]
            cache.batch_select_indices(keep)
            given = {name: _select(value, keep) for name, value in given.items()}
            processors = _of_rows(processors, keep)
        return [written[place, : int(lengths[place])] for place in range(len(rows))]


def _select(value: Any, keep: Tensor) -> Any:
    if isinstance(value, BaseModelOutput):
        return BaseModelOutput(last_hidden_state=value.last_hidden_state[keep])
    return None if value is None else value[keep]


def _of_rows(processors: Any, keep: Tensor) -> Any:
    """The processors for the rows that are left: limits are per row, all others treat rows alike."""
    kept = copy.copy(processors)
    for place, processor in enumerate(kept):
        if hasattr(processor, "limits"):
            kept[place] = copy.copy(processor)
            kept[place].limits = processor.limits[keep]
    return kept
