"""Greedy decoding taken apart, so that a step costs little, and many outputs under different masks share a batch.

`prepare` gives what transformers' `generate` works out before it writes the first token. `read` then chooses the next
token at many positions of a known text in one pass, and `step` writes one more token of every output. `Continuation`
finishes outputs whose beginning is known: it tries guesses at the rest before it writes token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from headcount.evaluation.outcomes import Mask, best_candidate
from headcount.intervene import masked
from headcount.structure import Substitutes
from headcount.tasks import Batch, DraftingTask, EndAtLimit, generator

TOGETHER = 512  # outputs that are continued in one batch
GUESSES = 2  # how often a guess at the rest is tried before decoding token by token
LEAVE = 8  # outputs that have ended leave the batch when they are more than an eighth of it


@dataclass(frozen=True, eq=False)
class Prepared:
    """What `generate` works out for a batch before it writes the first token.

    processors: of logits, all of which treat rows alike; limits are kept by whoever writes.
    """

    start: Tensor  # (N, P), what the decoder is given first: one token, Whisper several
    encoded: Tensor  # (N, S, hidden)
    attention_mask: Tensor | None  # (N, S)
    processors: tuple[Any, ...]

    def arguments(self) -> dict[str, Any]:
        """The model's arguments besides what the decoder reads."""
        encoder_outputs: Any = BaseModelOutput(last_hidden_state=self.encoded)  # type: ignore[arg-type]
        return {"encoder_outputs": encoder_outputs, "attention_mask": self.attention_mask}

    def rows(self, keep: Tensor) -> Prepared:
        """The same for some of the rows."""
        mask = None if self.attention_mask is None else self.attention_mask[keep]
        return Prepared(self.start[keep], self.encoded[keep], mask, self.processors)


def prepare(model: Any, task: DraftingTask, batch: Batch) -> Prepared:
    """Let the task begin to decode, and stop where the first token would be written."""
    seen: list[Prepared] = []

    def stop(model: Any, input_ids: Tensor, logits_processor: Any, **kwargs: Any) -> Tensor:
        processors = tuple(one for one in logits_processor if not isinstance(one, EndAtLimit))
        encoded = kwargs["encoder_outputs"].last_hidden_state
        seen.append(Prepared(input_ids, encoded, kwargs.get("attention_mask"), processors))
        return input_ids.repeat(1, 2)  # one token, so that the rest of `decode` has something to work on

    task.decode(_Stopping(model, stop), batch)
    (prepared,) = seen  # `decode` generates once
    return prepared


class _Stopping:
    """Looks like the model to `task.decode`, but its `generate` calls `stop` instead of decoding."""

    def __init__(self, model: Any, stop: Callable[..., Tensor]) -> None:
        self._model, self._stop = model, stop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate(self, *args: Any, **options: Any) -> Tensor:
        return generator(self._model)(*args, **options, custom_generate=self._stop)


@dataclass(frozen=True, eq=False)
class Reading:
    """The tokens that the model would write at some positions of a text."""

    hidden: Tensor  # (N, T, hidden), the last hidden states
    look: Tensor  # (N, T), which positions; P of them
    logits: Tensor  # (P, V)
    best: Tensor  # (P,)
    tied: Tensor  # (P,), whether the second best candidate is as good


def read(model: Any, prepared: Prepared, text: Tensor, look: Callable[[Tensor], Tensor]) -> Reading:
    """Choose the token at many positions in one teacher-forced pass: each is told the text before it.

    text: (N, T), padded on the right, which is harmless where every position only sees those before it.
    look: which positions to choose at, given the last hidden states: (N, T, hidden) to (N, T). Only these are
        projected on the vocabulary.
    """
    fed, given = torch.cat([prepared.start, text[:, :-1]], dim=1), prepared.start.shape[1]
    seen: list[tuple[Tensor, Tensor]] = []
    head = model.get_output_embeddings()
    project = head.forward

    def project_some(hidden: Tensor) -> Tensor:  # (N, T, hidden) to (1, P, V)
        hidden = hidden[:, given - 1 :]  # from where the text's first token is chosen
        where = look(hidden)
        seen.append((hidden, where))
        return project(hidden[where][None])

    with Substitutes() as stubs:
        stubs.put(head, project_some)
        output = model(decoder_input_ids=fed, use_cache=False, **prepared.arguments())
    ((hidden, where),) = seen  # the output projection runs once
    logits = _processed(prepared.processors, fed, given, where, output.logits[0].float())
    return Reading(hidden, where, logits, *best_candidate(logits))


def end_tokens(model: Any) -> Tensor:
    """The tokens that end a text."""
    end = model.generation_config.eos_token_id
    return torch.tensor([] if end is None else end, dtype=torch.long, device=model.device).reshape(-1)


def _processed(processors: tuple[Any, ...], fed: Tensor, given: int, look: Tensor, logits: Tensor) -> Tensor:
    """Apply logits processors position by position, as decoding would, after the tokens given first: (P, V)"""
    if not processors:
        return logits
    processed = torch.empty_like(logits)
    rows, positions = look.nonzero(as_tuple=True)
    for position in positions.unique().tolist():
        here = positions == position
        processed[here] = _apply(processors, fed[rows[here], : position + given], logits[here])
    return processed


def _apply(processors: tuple[Any, ...], before: Tensor, logits: Tensor) -> Tensor:
    for processor in processors:
        logits = processor(before, logits)
    return logits


def written_outputs(model: Any, task: DraftingTask, batch: Batch) -> tuple[Tensor, int]:
    """(B, T) the token ids that the model writes, which are those of `task.decode`; and how many were near ties.

    Faster than `generate`: a step does little but its arithmetic, and outputs that have ended leave the batch. To
    verify what another model wrote would not be faster on a CPU: that multiplies as much as writing it.
    """
    encoded = prepare(model, task, batch).encoded
    limits, nothing = task.limits(model, batch.indices), torch.empty(0, dtype=torch.long, device=encoded.device)
    begun = [
        PartialOutput(frozenset(), None, place, nothing, nothing, limit, encoded[place])
        for place, limit in enumerate(limits)
    ]
    finished, near_ties = Continuation(model, task, batch).finish(begun)
    texts = [one.tokens for one in sorted(finished, key=lambda one: one.place)]
    return torch.nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=task.pad), near_ties


@dataclass(frozen=True, eq=False)
class PartialOutput:
    """One sentence under one mask: the tokens that are decided, and a guess at those that follow."""

    mask: Mask
    xi: Tensor | None  # (heads,); None: the model as it is
    place: int  # in the batch
    tokens: Tensor  # (t,)
    guess: Tensor  # (g,)
    limit: int  # of tokens
    encoded: Tensor  # (S, hidden), what the encoder made of the sentence under this mask


@dataclass(frozen=True, eq=False)
class Continuation:
    """Finishes outputs of one batch, many at a time and each under its own mask."""

    model: Any
    task: DraftingTask
    batch: Batch
    fill: Mapping[str, Tensor] | None = None

    def finish(self, outputs: list[PartialOutput]) -> tuple[list[PartialOutput], int]:
        """The same outputs, decided to their ends, in any order; and how many choices were near ties."""
        ends = set(end_tokens(self.model).tolist())

        def has_ended(output: PartialOutput) -> bool:
            return len(output.tokens) >= output.limit or not ends.isdisjoint(output.tokens[-1:].tolist())

        near_ties = 0
        for way in (*[self._try_guesses] * GUESSES, self._write):
            ready: list[PartialOutput] = []
            others: list[PartialOutput] = []
            for output in outputs:
                takes_part = not has_ended(output) and (way == self._write or len(output.guess) > 0)
                (ready if takes_part else others).append(output)
            ready.sort(key=lambda output: (len(output.tokens), output.limit))
            for first in range(0, len(ready), TOGETHER):
                further, ties = way(ready[first : first + TOGETHER])
                others, near_ties = others + further, near_ties + ties
            outputs = others
        return outputs, near_ties

    def _prepare(self, outputs: list[PartialOutput]) -> Prepared:
        """What `generate` works out for these outputs, each with its own encoding.

        A task that gives all inputs of a batch to `generate` spares it running the encoder again.
        """
        places = [one.place for one in outputs]
        inputs: dict[str, Any] = {name: tensor[places] for name, tensor in self.batch.inputs.items()}
        encoded: Any = torch.stack([one.encoded for one in outputs])
        inputs["encoder_outputs"] = BaseModelOutput(last_hidden_state=encoded)
        indices = tuple(self.batch.indices[place] for place in places)
        return replace(prepare(self.model, self.task, Batch(inputs, None, indices)), encoded=encoded)

    def _under(self, xi: Tensor | None) -> AbstractContextManager[Any]:
        """Each output's own mask, (N, heads); without any, the model as it is."""
        return nullcontext() if xi is None else masked(self.model, xi=xi, fill=self.fill)

    def _try_guesses(self, outputs: list[PartialOutput]) -> tuple[list[PartialOutput], int]:
        """Check every guess in one pass: as far as it is what the model writes, and one token more, it is decided."""
        texts = [torch.cat([one.tokens, one.guess])[: one.limit] for one in outputs]
        text = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)  # (N, T)
        position = torch.arange(text.shape[1], device=text.device)
        known = torch.tensor([len(one.tokens) for one in outputs], device=text.device)
        lengths = torch.tensor([len(one) for one in texts], device=text.device)
        look = (position >= known[:, None]) & (position < lengths[:, None])  # (N, T)
        with self._under(_stacked_xi(outputs)):
            reading = read(self.model, self._prepare(outputs), text, lambda hidden: look)
        further, near_ties = [], 0
        guessed_at = (lengths - known).tolist()
        choices = zip(reading.best.split(guessed_at), reading.tied.split(guessed_at), strict=True)
        for output, tokens, (best, tied) in zip(outputs, texts, choices, strict=True):
            guess = tokens[len(output.tokens) :]
            wrong = (best != guess).nonzero()[:, 0]
            agreed = int(wrong[0]) if len(wrong) else len(guess)
            near_ties += bool(tied[: agreed + 1].any())
            decided = torch.cat([output.tokens, guess[:agreed], best[agreed : agreed + 1]])
            rest = after_disagreement(guess, agreed, best[agreed]) if len(wrong) else guess[:0]
            further.append(replace(output, tokens=decided, guess=rest))
        return further, near_ties

    def _write(self, outputs: list[PartialOutput]) -> tuple[list[PartialOutput], int]:
        """Write token by token; outputs that have ended leave the batch now and then."""
        ends = end_tokens(self.model)
        state = Written.begin(outputs, self._prepare(outputs))
        finished: list[PartialOutput] = []
        while len(state.ended):
            with self._under(state.xi):
                while not state.worth_shrinking():
                    state = step(self.model, ends, state)
            finished += [replace(outputs[place], tokens=tokens) for place, tokens in state.finished()]
            state = state.without_finished()
        return finished, state.near_ties


@dataclass(frozen=True, eq=False)
class Written:
    """The outputs that are being written, after some steps; the start tokens are written at first."""

    prepared: Prepared
    places: Tensor  # (N,) of these outputs among all that were begun
    xi: Tensor | None  # (N, heads)
    decided: Tensor  # (N, longest) tokens that are known already, -1 from the first unknown one on
    limits: Tensor  # (N,)
    written: Tensor  # (N, P + t)
    lengths: Tensor  # (N,) tokens up to the end, of outputs that have ended
    ended: Tensor  # (N,)
    cache: Any = None  # of keys and values, which grows in place
    near_ties: int = 0  # in all choices so far

    @classmethod
    def begin(cls, outputs: list[PartialOutput], prepared: Prepared) -> Written:
        """All that every one of the outputs knows is written at once."""
        device = prepared.start.device
        limits = torch.tensor([one.limit for one in outputs], device=device)
        decided = prepared.start.new_full((len(outputs), int(limits.max())), -1)
        for row, one in enumerate(outputs):
            decided[row, : len(one.tokens)] = one.tokens
        common = min(len(one.tokens) for one in outputs)
        written = torch.cat([prepared.start, decided[:, :common]], dim=1)
        ended = torch.zeros(len(outputs), dtype=torch.bool, device=device)
        places = torch.arange(len(outputs), device=device)
        return cls(prepared, places, _stacked_xi(outputs), decided, limits, written, limits, ended)

    def worth_shrinking(self) -> bool:
        """Whether enough outputs have ended to continue without them."""
        ended = int(self.ended.sum())
        return ended == len(self.ended) or ended * LEAVE > len(self.ended)

    def finished(self) -> list[tuple[int, Tensor]]:
        """Place and tokens of each output that has ended."""
        rows = self.ended.nonzero()[:, 0].tolist()
        texts = self.written[:, self.prepared.start.shape[1] :]
        return [(int(self.places[row]), texts[row, : int(self.lengths[row])]) for row in rows]

    def without_finished(self) -> Written:
        """The state of the outputs that have not ended."""
        keep = (~self.ended).nonzero()[:, 0]
        self.cache.batch_select_indices(keep)
        names = ("places", "decided", "limits", "written", "lengths", "ended")
        rows = {name: getattr(self, name)[keep] for name in names}
        return replace(self, prepared=self.prepared.rows(keep), xi=None if self.xi is None else self.xi[keep], **rows)


def _stacked_xi(outputs: list[PartialOutput]) -> Tensor | None:
    """(N, heads); None if the outputs are those of the model as it is."""
    each = [one.xi for one in outputs if one.xi is not None]
    return torch.stack(each) if each else None


def step(model: Any, ends: Tensor, state: Written) -> Written:
    """Write one more token of every output: the one that is decided, or else the best candidate."""
    fed = state.written if state.cache is None else state.written[:, -1:]
    output = model(decoder_input_ids=fed, past_key_values=state.cache, use_cache=True, **state.prepared.arguments())
    logits = _apply(state.prepared.processors, state.written, output.logits[:, -1].float())  # (N, V)
    best, tied = best_candidate(logits)
    count = state.written.shape[1] + 1 - state.prepared.start.shape[1]  # tokens after this one, but for the first given
    decided = state.decided[:, count - 1]
    free = decided < 0
    token = torch.where(free, best, decided)
    ends_here = ~state.ended & ((free & torch.isin(token, ends)) | (count >= state.limits))
    return replace(
        state,
        written=torch.cat([state.written, token[:, None]], dim=1),
        lengths=torch.where(ends_here, count, state.lengths),
        ended=state.ended | ends_here,
        cache=output.past_key_values,
        near_ties=state.near_ties + int((tied & free & ~state.ended).sum()),
    )


def after_disagreement(draft: Tensor, at: int, chosen: Tensor) -> Tensor:
    """What a draft suggests after another token was chosen at a position: the rest, less a token that was skipped.

    >>> after_disagreement(torch.tensor([5, 6, 7, 8]), 1, torch.tensor(9)).tolist()
    [7, 8]
    >>> after_disagreement(torch.tensor([5, 6, 7, 8]), 1, torch.tensor(7)).tolist()
    [8]
    """
    skipped = at + 1 < len(draft) and bool(draft[at + 1] == chosen)
    return draft[at + 2 :] if skipped else draft[at + 1 :]
