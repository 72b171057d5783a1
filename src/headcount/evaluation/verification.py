"""Verify a draft under many masks in one teacher-forced pass, looking at as few logits as can decide.

A logit is w_i h + b_i. Where a mask moves the last hidden state h by dh, no candidate i can overtake the chosen y
unless `margin < |dh| max_i |w_y - w_i|`. Positions with a larger margin need not be projected on the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headcount.structure import Substitutes
from headcount.tasks import Batch, Task

TIE = 1e-4


class Speaker:
    """Looks like the model to `task.decode`, but generates by a loop of ours, given all that `generate` prepares."""

    def __init__(self, model: Any, loop: Callable[..., Tensor]) -> None:
        self._model, self._loop = model, loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate(self, **options: Any) -> Tensor:
        return self._model.generate(**options, custom_generate=self._loop)


@dataclass
class Verdict:
    """What the model would have written at every position of the draft, where it was close, and its encoding."""

    chosen: Tensor  # (M * B, T); the draft's own token where it is not needed or cannot have changed
    tied: Tensor  # (M * B, T)
    encoded: Tensor  # (M * B, S, hidden)


class Verifier:
    """Verifies the greedy output of the unmasked model for one batch."""

    def __init__(self, model: Any, task: Task, draft: Tensor, needed: Tensor) -> None:
        self.model, self.task, self.draft = model, task, draft  # draft: (B, T)
        self.asked = torch.arange(draft.shape[1], device=draft.device) < needed[:, None]  # (B, T)
        self.head = model.get_output_embeddings()
        self.hidden: Tensor | None = None  # of the unmasked model: (B, T, hidden)
        self.margin = self.reach = torch.empty(0)  # (B, T)

    def __call__(self, many: Batch) -> Verdict:
        """Verify the draft for each copy of the batch; the first call must be on the unmasked model."""
        verdicts: list[Verdict] = []

        def loop(model: Any, input_ids: Tensor, logits_processor: Any, **kwargs: Any) -> Tensor:
            copies = len(input_ids) // len(self.draft)
            draft = self.draft.repeat(copies, 1)
            fed = torch.cat([input_ids, draft[:, :-1]], dim=1)  # (M * B, T), causal: padding on the right is harmless
            given = {name: kwargs[name] for name in ("encoder_outputs", "attention_mask") if name in kwargs}
            # Limits are not reached inside a draft; other processors must see every candidate.
            processors = [one for one in logits_processor if not hasattr(one, "limits")]
            look = self.asked.repeat(copies, 1)
            with Substitutes() as stubs:
                self._project_only(stubs, look, certify=not processors)
                logits = model(decoder_input_ids=fed, use_cache=False, **given).logits[0]  # (positions, V)
            process(processors, fed, look, logits)
            best, tied = best_candidate(logits)
            if self.hidden is None:
                raise RuntimeError("the output projection did not run")
            if not len(self.margin):
                self._remember(logits, best)
            verdict = Verdict(draft.clone(), torch.zeros_like(look), kwargs["encoder_outputs"].last_hidden_state)
            verdict.chosen[look], verdict.tied[look] = best, tied
            verdicts.append(verdict)
            return torch.cat([input_ids, draft], dim=1)

        self.task.decode(Speaker(self.model, loop), many)
        return verdicts[0]

    def _project_only(self, stubs: Substitutes, look: Tensor, certify: bool) -> None:
        """Let the output projection see only the positions in `look`, less those that cannot have changed."""
        own = self.head.forward

        def forward(hidden: Tensor) -> Tensor:  # (M * B, T, hidden) to (1, positions, V)
            if self.hidden is None:
                self.hidden = hidden
            elif certify and len(self.margin):
                copies = len(hidden) // len(self.hidden)
                moved = (hidden - self.hidden.repeat(copies, 1, 1)).norm(dim=-1)  # (M * B, T)
                look[moved * self.reach.repeat(copies, 1) < self.margin.repeat(copies, 1) - TIE] = False
            return own(hidden[look][None])

        stubs.put(self.head, forward)

    def _remember(self, logits: Tensor, best: Tensor) -> None:
        """How far each choice of the unmasked model is ahead, and how fast a change can close the gap."""
        top = logits.gather(1, best[:, None])[:, 0]
        second = logits.scatter(1, best[:, None], -torch.inf).amax(dim=1)
        self.margin = torch.zeros(self.draft.shape, device=logits.device)
        self.margin[self.asked] = torch.where(best == self.draft[self.asked], top - second, 0.0)
        tokens, place = self.draft.unique(return_inverse=True)
        self.reach = _reach(self.head, tokens)[place]


def _reach(head: nn.Module, tokens: Tensor) -> Tensor:
    """max_i |w_y - w_i| for every token y."""
    weight: Any = head.weight  # (V, hidden)
    square = weight.square().sum(dim=1)
    distance = square[tokens, None] + square - 2 * weight[tokens] @ weight.T
    return distance.amax(dim=1).clamp(min=0).sqrt() * (1 + 1e-5)


def best_candidate(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The best candidate, and whether another lies within 1e-4 of it: (N, V) to (N,), (N,)"""
    top, best = logits.max(dim=-1)
    second = logits.scatter(-1, best[..., None], -torch.inf).amax(dim=-1)
    return best, top - second < TIE


def process(processors: list[Any], fed: Tensor, look: Tensor, logits: Tensor) -> None:
    """Apply logits processors position by position, as decoding would."""
    rows, positions = look.nonzero(as_tuple=True)
    for position in positions.unique().tolist() if processors else ():
        here = positions == position
        before, scores = fed[rows[here], : position + 1], logits[here]
        for processor in processors:
            scores = processor(before, scores)
        logits[here] = scores
