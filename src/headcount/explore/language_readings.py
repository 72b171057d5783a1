"""Language models, causal and masked: candidates for a token, and a greedy continuation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headcount.errors import BadData
from headcount.explore.text_reading import TextReading, encoded, self_tokens, shares_of, step_shares, token_names
from headcount.structure import device_of, position_limit, without_cache
from headcount.tasks import Batch, Metric, pad_token

BARS = 8  # candidates for one token that are shown
NEW_TOKENS = 10  # of a continuation
LOSS = Metric("loss", lambda sums: sums[..., 0], higher_is_better=False, relative=True)


class TokenReading(TextReading):
    """A language model: the shares of its candidates for one token, and the loss of the tokens that it chose itself."""

    def __init__(self, tokenizer: Any, ids: list[int], position: int) -> None:
        pad, _ = pad_token(tokenizer)
        super().__init__({"input_ids": [ids]}, [[-100] * len(ids)], metric=LOSS, pad=pad)
        self.tokenizer, self.position = tokenizer, position

    def look(self, model: Any) -> Tensor:
        """Run the whole model, note its candidates, and return the best token at every position: (T,)"""
        outputs = self.outputs(model, self.batch([0]).to(device_of(model)))[0]  # (T, V)
        self.whole = shares_of(outputs[self.position])
        self.candidates = self.whole.topk(min(BARS, len(self.whole))).indices
        return outputs.argmax(dim=-1)

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        return model(**batch.inputs, **without_cache(model)).logits  # (B, T, V)

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        assert batch.labels is not None
        labels = batch.labels.to(outputs.device)
        each = F.cross_entropy(outputs.float().transpose(1, 2), labels, ignore_index=-100, reduction="none")
        return each.sum(dim=1) / (labels != -100).sum(dim=1)

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        assert batch.labels is not None
        shares = shares_of(outputs[:, self.position])[:, self.candidates]  # (B, K)
        return self.columns(batch, self.losses(outputs, batch), shares, step_shares(outputs, batch.labels))

    def shown(self, model: Any, outputs: Tensor, shares: list[float]) -> dict[str, Any]:
        now = shares_of(outputs[0, self.position])
        known = self.candidates.tolist()
        others = [token for token in now.topk(len(known)).indices.tolist() if token not in known]
        given = [*shares[: len(known)], *now[others].tolist()]
        tokens = [*known, *others]
        bars = [
            {"name": name, "share": share, "was": was}
            for name, share, was in zip(
                token_names(self.tokenizer, tokens), given, self.whole[tokens].tolist(), strict=True
            )
        ]
        return {"bars": bars, "steps": shares[len(known) :]}


class HiddenReading(TokenReading):
    """A masked language model: what it puts in place of the mask token; without one, of the last word."""

    def __init__(self, model: Any, tokenizer: Any, text: str, pair: str | None, limit: int) -> None:
        ids, cut = encoded(tokenizer, text, limit)
        if tokenizer.mask_token_id not in ids:
            special = set(tokenizer.all_special_ids)
            words = [place for place, token in enumerate(ids) if token not in special]
            if not words:
                raise BadData("the text has no word to hide")
            self.note = f"the last token is hidden; write {tokenizer.mask_token} to choose another"
            ids = [tokenizer.mask_token_id if place == words[-1] else token for place, token in enumerate(ids)]
        hidden = [place for place, token in enumerate(ids) if token == tokenizer.mask_token_id]
        super().__init__(tokenizer, ids, hidden[0])
        best = self.look(model).tolist()
        self.labels = [[best[place] if place in hidden else -100 for place in range(len(ids))]]
        self.steps, self.cut = token_names(tokenizer, [best[place] for place in hidden]), cut
        self.tokens = self_tokens(tokenizer, ids)


class ContinuedReading(TokenReading):
    """A causal language model: its candidates for the next token, and its own greedy continuation."""

    def __init__(self, model: Any, tokenizer: Any, text: str, pair: str | None, limit: int) -> None:
        room = position_limit(model)
        limit = min(limit, limit if room is None else max(1, room - NEW_TOKENS))
        prompt, cut = encoded(tokenizer, text, limit)
        super().__init__(tokenizer, prompt, len(prompt) - 1)
        self.cut, self.prompt = cut, prompt
        end = model.generation_config.eos_token_id if getattr(model, "generation_config", None) else None
        self.ends = {end} if isinstance(end, int) else set(end or ())
        self.own = self._continue(model, [])
        ids = [*prompt, *self.own[:-1]]
        self.features = {"input_ids": [ids]}
        self.lengths, self.content = [len(ids)], list[Any]([ids])
        self.labels = [[*[-100] * (len(prompt) - 1), *self.own]]
        self.look(model)
        self.steps = token_names(tokenizer, self.own)
        self.tokens = self_tokens(tokenizer, ids)

    def shown(self, model: Any, outputs: Tensor, shares: list[float]) -> dict[str, Any]:
        best = outputs[0, self.position :].argmax(dim=-1).tolist()
        agreed = next((n for n, pair in enumerate(zip(best, self.own, strict=True)) if pair[0] != pair[1]), None)
        # As far as the choices are those of the whole model, they are what decoding would write.
        written = self.own if agreed is None else self._continue(model, [*self.own[:agreed], best[agreed]])
        return {**super().shown(model, outputs, shares), "written": self.tokenizer.decode(written)}

    def _continue(self, model: Any, begun: Sequence[int]) -> list[int]:
        """The greedy continuation of the prompt, of which a beginning is known."""
        written = list(begun)
        fed, cache = torch.tensor([[*self.prompt, *written]], device=device_of(model)), None
        while len(written) < NEW_TOKENS and not (written and written[-1] in self.ends):
            output = model(input_ids=fed, past_key_values=cache, use_cache=True)
            written.append(int(output.logits[0, -1].argmax()))
            cache, fed = output.past_key_values, torch.tensor([written[-1:]], device=fed.device)
        return written
