"""Use the draft again after a disagreement: often one word changes, and what follows stays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headcount.evaluate.outcomes import Mask
from headcount.evaluate.substitute import Substitutes
from headcount.evaluate.verification import best_candidate, process


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
