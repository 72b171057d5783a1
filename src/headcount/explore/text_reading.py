"""`TextReading`: one text as a task whose right answer is what the whole model answers, and how its tokens are shown.

A loss then says how far a mask moves the model. The statistics of a pass are the loss first, then the shares that the
page shows, so `evaluate` can sweep over a reading as over any other task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headcount.structure import device_of
from headcount.tasks import BaseTask, Rows, tokenized


class TextReading(BaseTask):
    """What every reading has beside its task: tokens to show, and the answer to a pass.

    tokens: for each kind of attention the tokens that attend and those attended to. steps: the names of the tokens
    whose shares are shown one by one. cut, note: what the reader should know, if the text was too long, or otherwise.
    """

    tokens: dict[str, tuple[list[str], list[str]]]
    steps: list[str]
    cut: str = ""
    note: str = ""
    measure = "loss of its own answer"  # what the first statistic is

    @torch.inference_mode()
    def reply(self, model: Any) -> dict[str, Any]:
        """What the model answers now, under whatever mask is set around this call."""
        batch = self.batch([0]).to(device_of(model))
        outputs = self.outputs(model, batch)
        loss, *shares = self.statistics(outputs, batch)[0].tolist()
        return {"loss": loss, **self.shown(model, outputs, shares)}

    def shown(self, model: Any, outputs: Tensor, shares: list[float]) -> dict[str, Any]:
        """Bars, steps and text of an answer; shares: the statistics after the loss."""
        raise NotImplementedError


def encoded(tokenizer: Any, text: str, limit: int) -> tuple[list[int], str]:
    """The token ids of a text, and a word if it was too long."""
    features, remarks = tokenized(Rows({"text": [text]}), tokenizer, [[text]], limit)
    return list(features["input_ids"][0]), cut_remark(remarks, limit)


def cut_remark(remarks: Sequence[str], limit: int) -> str:
    return f"the text is cut to its first {limit} tokens" if any("truncated" in one for one in remarks) else ""


def self_tokens(tokenizer: Any, ids: Sequence[int]) -> dict[str, tuple[list[str], list[str]]]:
    """Self-attention: a token attends to all of the same text."""
    names = token_names(tokenizer, ids)
    return dict.fromkeys(("encoder", "text", "decoder"), (names, names))


def decoder_tokens(tokenizer: Any, source: Sequence[int], before: Sequence[int]) -> dict[str, Any]:
    written = token_names(tokenizer, before)
    return {"decoder": (written, written), "cross": (written, token_names(tokenizer, source))}


def token_names(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Tokens as a reader knows them; where a token is only part of a character, as the vocabulary writes it."""
    names = []
    for token, raw in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        name = tokenizer.decode([token], clean_up_tokenization_spaces=False)
        names.append((raw or f"#{token}") if "\ufffd" in name or not name else name)
    return names


def shares_of(logits: Tensor) -> Tensor:
    return logits.float().softmax(dim=-1)


def step_shares(outputs: Tensor, labels: Tensor) -> Tensor:
    """The share of every token that is to be predicted: (B, T, V) to (B, steps), the same steps in every row."""
    wanted = labels[0] != -100
    chosen = labels[:, wanted].to(outputs.device)  # (B, steps)
    return shares_of(outputs[:, wanted.to(outputs.device)]).gather(2, chosen[..., None])[..., 0]
