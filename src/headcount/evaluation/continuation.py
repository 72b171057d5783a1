"""Decode what verification left over: sentences that changed, each under its own mask, in large batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from headcount.evaluation.outcomes import Mask
from headcount.evaluation.verification import Speaker, best_candidate, process
from headcount.intervene import masked
from headcount.structure import Substitutes
from headcount.tasks import Batch

ROWS = 512  # sentences that are continued together
GIVEN = ("encoder_outputs", "attention_mask")
GUESSES = 2  # times that the rest of the draft is tried before decoding step by step
LEAVE = 8  # when an eighth of them has ended, they leave the batch


class Continuation:
    """Goes on with rows of one batch after their prefixes, greedily, with a cache."""

    def __init__(self, model: Any, task: Any, batch: Batch, fill: Mapping[str, Tensor] | None = None) -> None:
        self.model, self.task, self.batch, self.fill = model, task, batch, fill
        end = model.generation_config.eos_token_id
        self.ends = set(end if isinstance(end, list) else [end])
        self.near_ties = 0

    def finish(self, rows: list[Row]) -> Iterator[tuple[Row, Tensor]]:
        """The whole output of every row: first by guesses from the draft, then step by step."""
        for way in (*[self._guess] * GUESSES, self._write):
            yield from ((row, row.prefix) for row in rows if self._ended(row))
            rows = [row for row in rows if not self._ended(row)]
            able = [row for row in rows if way == self._write or len(row.guess)]
            rows = [row for row in rows if not (way == self._write or len(row.guess))]
            able.sort(key=lambda row: (len(row.prefix), row.limit))
            for start in range(0, len(able), ROWS):
                rows.extend(self._generate(able[start : start + ROWS], way))
        yield from ((row, row.prefix) for row in rows)

    def _ended(self, row: Row) -> bool:
        return row.done or len(row.prefix) >= row.limit or int(row.prefix[-1]) in self.ends

    def _generate(self, rows: list[Row], way: Callable[..., list[Row]]) -> list[Row]:
        """Let `generate` prepare everything for these rows, and go on in our own way."""
        places = [row.place for row in rows]
        inputs: dict[str, Any] = {name: tensor[places] for name, tensor in self.batch.inputs.items()}
        inputs["encoder_outputs"] = _encoding(torch.stack([row.encoded for row in rows]))
        many = replace(self.batch, inputs=inputs, labels=None, indices=tuple(self.batch.indices[i] for i in places))
        further: list[Row] = []

        def loop(model: Any, input_ids: Tensor, logits_processor: Any, **kwargs: Any) -> Tensor:
            given: dict[str, Any] = {name: kwargs[name] for name in GIVEN if name in kwargs}
            further.extend(way(rows, input_ids, logits_processor, given))
            return input_ids

        self.task.decode(Speaker(self.model, loop), many)
        return further

    def _guess(self, rows: list[Row], start: Tensor, processors: Any, given: dict[str, Any]) -> list[Row]:
        with masked(self.model, xi=torch.stack([row.xi for row in rows]), fill=self.fill):
            further, ties = verify_guesses(self.model, rows, start, processors, given)
        self.near_ties += ties
        return further

    def _write(self, rows: list[Row], start: Tensor, processors: Any, given: dict[str, Any]) -> list[Row]:
        written = self._steps(rows, start, processors, given)
        return [replace(row, prefix=tokens, done=True) for row, tokens in zip(rows, written, strict=True)]

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


@dataclass(frozen=True)
class Row:
    """One sentence under one mask, decided up to the end of `prefix`; `guess` is how it may go on."""

    mask: Mask
    xi: Tensor  # (heads,)
    place: int  # in the batch
    prefix: Tensor
    guess: Tensor
    limit: int
    encoded: Tensor  # (S, hidden)
    done: bool = False


def after_disagreement(draft: Tensor, at: int, chosen: Tensor) -> Tensor:
    """What a draft suggests after another word was chosen at a position: the rest, less a word that was skipped.

    >>> after_disagreement(torch.tensor([5, 6, 7, 8]), 1, torch.tensor(9)).tolist()
    [7, 8]
    >>> after_disagreement(torch.tensor([5, 6, 7, 8]), 1, torch.tensor(7)).tolist()
    [8]
    """
    skipped = at + 1 < len(draft) and bool(draft[at + 1] == chosen)
    return draft[at + 2 :] if skipped else draft[at + 1 :]


def verify_guesses(
    model: Any, rows: list[Row], start: Tensor, processors: Any, given: dict[str, Any]
) -> tuple[list[Row], int]:
    """Check every row's guess in one pass; each row comes back decided further, and how often it was close."""
    written = [torch.cat([row.prefix, row.guess])[: row.limit] for row in rows]
    width = max(map(len, written))
    fed = start.new_zeros(len(rows), width)
    look = torch.zeros(len(rows), width, dtype=torch.bool, device=start.device)
    fed[:, 0] = start[:, 0]
    for place, (row, tokens) in enumerate(zip(rows, written, strict=True)):
        fed[place, 1 : len(tokens)] = tokens[:-1]
        look[place, len(row.prefix) : len(tokens)] = True
    head = model.get_output_embeddings()
    with Substitutes() as stubs:
        own = head.forward
        stubs.put(head, lambda hidden: own(hidden[look][None]))
        logits = model(decoder_input_ids=fed, use_cache=False, **given).logits[0]  # (positions, V)
    process([one for one in processors if not hasattr(one, "limits")], fed, look, logits)
    best, tied = best_candidate(logits)
    at, ties, result = 0, 0, []
    for row, tokens in zip(rows, written, strict=True):
        count = len(tokens) - len(row.prefix)
        mine, guessed, close = best[at : at + count], tokens[len(row.prefix) :], tied[at : at + count]
        at += count
        wrong = (mine != guessed).nonzero()
        agreed = int(wrong[0, 0]) if len(wrong) else count
        ties += bool(close[: agreed + 1].any())
        if agreed == count:
            result.append(replace(row, prefix=tokens, guess=tokens[:0]))
        else:
            prefix = torch.cat([row.prefix, guessed[:agreed], mine[agreed : agreed + 1]])
            guess = after_disagreement(guessed, agreed, mine[agreed])
            result.append(replace(row, prefix=prefix, guess=guess))
    return result, ties
