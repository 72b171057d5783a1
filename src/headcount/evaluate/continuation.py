"""Decode what verification left over: sentences that changed, each under its own mask, in large batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from headcount.evaluate.outcomes import Mask
from headcount.evaluate.verification import Speaker, best_candidate
from headcount.mask import masked
from headcount.tasks import Batch

ROWS = 512  # sentences that are continued together
GIVEN = ("encoder_outputs", "attention_mask")
LEAVE = 8  # when an eighth of them has ended, they leave the batch


@dataclass(frozen=True)
class Row:
    """One sentence under one mask, decided up to the end of `prefix`."""

    mask: Mask
    xi: Tensor  # (heads,)
    place: int  # in the batch
    prefix: Tensor
    limit: int
    encoded: Tensor  # (S, hidden)


class Continuation:
    """Goes on with rows of one batch after their prefixes, greedily, with a cache."""

    def __init__(self, model: Any, task: Any, batch: Batch, fill: Mapping[str, Tensor] | None = None) -> None:
        self.model, self.task, self.batch, self.fill = model, task, batch, fill
        end = model.generation_config.eos_token_id
        self.ends = set(end if isinstance(end, list) else [end])
        self.near_ties = 0

    def finish(self, rows: list[Row]) -> Iterator[tuple[Row, Tensor]]:
        """The whole output of every row."""
        open_rows = []
        for row in rows:
            if len(row.prefix) >= row.limit or int(row.prefix[-1]) in self.ends:
                yield row, row.prefix
            else:
                open_rows.append(row)
        open_rows.sort(key=lambda row: (len(row.prefix), row.limit))
        for start in range(0, len(open_rows), ROWS):
            some = open_rows[start : start + ROWS]
            yield from zip(some, self._decode(some), strict=True)

    def _decode(self, rows: list[Row]) -> list[Tensor]:
        places = [row.place for row in rows]
        inputs: dict[str, Any] = {name: tensor[places] for name, tensor in self.batch.inputs.items()}
        inputs["encoder_outputs"] = _encoding(torch.stack([row.encoded for row in rows]))
        many = replace(self.batch, inputs=inputs, labels=None, indices=tuple(self.batch.indices[i] for i in places))
        written: list[Tensor] = []

        def loop(model: Any, input_ids: Tensor, logits_processor: Any, **kwargs: Any) -> Tensor:
            given: dict[str, Any] = {name: kwargs[name] for name in GIVEN if name in kwargs}
            written.extend(self._steps(rows, input_ids, logits_processor, given))
            return input_ids

        self.task.decode(Speaker(self.model, loop), many)
        return written

    def _steps(self, rows: list[Row], start: Tensor, processors: Any, given: dict[str, Any]) -> list[Tensor]:
        """Step by step; `alive` are the rows still in the batch, which rows that have ended leave now and then."""
        device = start.device
        written = start.new_zeros(len(rows), max(row.limit for row in rows))
        for place, row in enumerate(rows):
            written[place, : len(row.prefix)] = row.prefix
        decided = torch.tensor([len(row.prefix) for row in rows], device=device)
        lengths = torch.tensor([row.limit for row in rows], device=device)
        ends = torch.tensor(sorted(self.ends - {None}), device=device)
        xi = torch.stack([row.xi for row in rows])
        alive = torch.arange(len(rows), device=device)
        position = int(decided.min())
        fed = torch.cat([start, written[:, :position]], dim=1)
        cache: Any = None
        while len(alive):
            ended = torch.zeros_like(alive, dtype=torch.bool)
            with masked(self.model, xi=xi[alive], fill=self.fill):
                while not bool(ended.all()) and int(ended.sum()) * LEAVE <= len(alive):
                    output = self.model(decoder_input_ids=fed, past_key_values=cache, use_cache=True, **given)
                    cache = output.past_key_values
                    before = torch.cat([start[alive], written[alive, :position]], dim=1)
                    best, tied = best_candidate(processors(before, output.logits[:, -1].float()))
                    forced = position < decided[alive]
                    best = torch.where(forced | ended, written[alive, position], best)
                    self.near_ties += int((tied & ~forced & ~ended).sum())
                    written[alive, position] = best
                    position += 1
                    stops = (torch.isin(best, ends) & ~forced) | (position >= lengths[alive])
                    lengths[alive[stops & ~ended]] = position
                    ended |= stops
                    fed = best[:, None]
            keep = (~ended).nonzero()[:, 0]
            alive, fed = alive[keep], fed[keep]
            cache.batch_select_indices(keep)
            given = {name: _select(value, keep) for name, value in given.items()}
            processors = _of_rows(processors, keep)
        return [written[place, :length] for place, length in enumerate(lengths.tolist())]


def _select(value: Any, keep: Tensor) -> Any:
    if isinstance(value, BaseModelOutput):
        return _encoding(value["last_hidden_state"][keep])
    return None if value is None else value[keep]


def _encoding(hidden: Any) -> BaseModelOutput:
    return BaseModelOutput(last_hidden_state=hidden)


def _of_rows(processors: Any, keep: Tensor) -> Any:
    """The processors for the rows that are left: limits are per row, all others treat rows alike."""
    kept = copy.copy(processors)
    for place, processor in enumerate(kept):
        if hasattr(processor, "limits"):
            kept[place] = copy.copy(processor)
            kept[place].limits = processor.limits[keep]
    return kept
