"""One text as a task: what the whole model answers is taken as right, so that a loss says how far a mask moves it.

There is one reading for each kind of model. Its statistics of a pass are the loss first, then the shares that the page
shows: `evaluate` can sweep over it as over any other task.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headcount.errors import BadData, UnsupportedModel
from headcount.structure import device_of, position_limit, start_token, without_cache
from headcount.tasks import BaseTask, Batch, Classification, Metric, Rows, Translation, guess_kind, pad_token, tokenized

BARS = 8  # candidates for one token that are shown
NEW_TOKENS = 10  # of a continuation
LOSS = Metric("loss", lambda sums: sums[..., 0], higher_is_better=False, relative=True)


class TextReading(BaseTask):
    """What every reading has beside its task: tokens to show, and the answer to a pass.

    tokens: for each kind of attention the tokens that attend and those attended to. steps: the names of the tokens
    whose shares are shown one by one. cut: whether the text was too long.
    """

    tokens: dict[str, tuple[list[str], list[str]]]
    steps: list[str]
    cut: str = ""
    measure = "loss of its own answer"  # what the first statistic is

    @torch.inference_mode()
    def answer(self, model: Any) -> dict[str, Any]:
        """What the model answers now, under whatever mask is set around this call."""
        batch = self.batch([0]).to(device_of(model))
        outputs = self.outputs(model, batch)
        loss, *shares = self.statistics(outputs, batch)[0].tolist()
        return {"loss": loss, **self.shown(model, outputs, shares)}

    def shown(self, model: Any, outputs: Tensor, shares: list[float]) -> dict[str, Any]:
        """Bars, steps and text of an answer; shares: the statistics after the loss."""
        raise NotImplementedError


def read(model: Any, tokenizer: Any, text: str, pair: str | None = None, max_length: int | None = None) -> TextReading:
    """Read one text, or a pair of texts, as the model's class asks for.

    >>> from headcount.tasks.toy import toy_classifier
    >>> model, task = toy_classifier()
    >>> reading = read(model, task.tokenizer, "a fine film")
    >>> reading.tokens["encoder"][0], sorted(reading.answer(model))
    (['<s>', 'a', 'fine', 'film', '</s>'], ['bars', 'loss'])
    """
    main = getattr(model, "main_input_name", "input_ids")
    if main != "input_ids":
        raise UnsupportedModel(f"{type(model).__name__} reads {main}; only models that read text can be explored")
    kind = guess_kind(model)
    make = {"classification": ClassReading, "translation": WrittenReading, "causal": ContinuedReading}.get(kind or "")
    if make is None and kind == "masked":
        make = HiddenReading
    if make is None:
        if model.config.is_encoder_decoder or not _is_bare(model):
            raise UnsupportedModel(
                f"{type(model).__name__} cannot be explored; expected a classifier, a translator, a language model or "
                "an encoder without a task"
            )
        make = EmbeddingReading
    if pair is not None and make is not ClassReading:
        raise BadData(f"{type(model).__name__} reads one text, not a pair", advice="leave out {pair}")
    if not text.strip():
        raise BadData("the text is empty")
    limits = [n for n in (max_length, position_limit(model), tokenizer.model_max_length) if n is not None]
    with torch.inference_mode():
        reading: TextReading = make(model, tokenizer, text, pair, min(limits))
    reading.check(model)
    return reading


def _is_bare(model: Any) -> bool:
    """Whether the model is a stack without a head for a task."""
    return getattr(model, "base_model", None) is model


class ClassReading(Classification, TextReading):
    """A classifier: shares of the classes; several where each is decided alone, a score where there is one output."""

    def __init__(self, model: Any, tokenizer: Any, text: str, pair: str | None, limit: int) -> None:
        row = {"text": text, "label": 0} | ({} if pair is None else {"pair": pair})
        second = None if pair is None else "pair"
        super().__init__([row], tokenizer, text="text", pair=second, label="label", metric="loss", max_length=limit)
        config = model.config
        self.steps, self.cut = [], _cut(self.remarks, limit)
        self.several = getattr(config, "problem_type", None) == "multi_label_classification"
        self.scored = config.num_labels == 1
        self.measure = "how far the score moves" if self.scored else TextReading.measure
        self.classes = [str(config.id2label.get(place, place)) for place in range(config.num_labels)]
        self.own: Tensor = self.outputs(model, self.batch([0]).to(device_of(model)))  # (1, C)
        self.labels = [int(self.own.argmax())]
        ids = self.features["input_ids"][0]
        self.tokens = _tokens(tokenizer, ids)
        if config.is_encoder_decoder:
            self.tokens |= _decoder_tokens(tokenizer, ids, [start_token(config), *ids[:-1]])

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        if self.scored:
            return (outputs - self.own).abs()[:, 0]
        if self.several:
            decided = (self.own > 0).to(outputs).expand_as(outputs)
            return F.binary_cross_entropy_with_logits(outputs, decided, reduction="none").sum(dim=1)
        return super().losses(outputs, batch)

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        shares = outputs.float() if self.scored else outputs.float().sigmoid() if self.several else _shares(outputs)
        return self.columns(batch, self.losses(outputs, batch), shares)

    def shown(self, model: Any, outputs: Tensor, shares: list[float]) -> dict[str, Any]:
        bars = [{"name": name, "share": share} for name, share in zip(self.classes, shares, strict=True)]
        return {"score": shares[0]} if self.scored else {"bars": bars}

    def check(self, model: Any) -> list[str]:
        return BaseTask.check(self, model)  # the label is the model's own answer


class WrittenReading(Translation, TextReading):
    """An encoder-decoder that writes: its own output is the reference, token by token."""

    def __init__(self, model: Any, tokenizer: Any, text: str, pair: str | None, limit: int) -> None:
        row = {"source": text, "target": text}
        super().__init__([row], tokenizer, source="source", target="target", metric="loss", max_length=limit)
        batch = self.batch([0]).to(device_of(model))
        ids = self.decode(model, batch)[0]
        kept = (ids != self.pad).nonzero()[:, 0].tolist()
        own = ids[: kept[-1] + 1 if kept else 1].tolist()
        self.labels, self.own = [own], torch.tensor(own)
        self.cut = _cut(self.remarks, limit)
        self.written = self._text(own)
        self.steps = _names(tokenizer, own)
        before = [start_token(model.config), *own[:-1]]
        source = self.features["input_ids"][0]
        self.tokens = _tokens(tokenizer, source) | _decoder_tokens(tokenizer, source, before)
        # Where no processor of logits decided anything, an output whose best tokens are these is this output.
        plain = all(getattr(model.generation_config, name, None) in (None, 1.0) for name in PROCESSORS)
        self.verifiable = plain and self._is_own(self.outputs(model, self.batch([0]).to(device_of(model))))

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        assert batch.labels is not None
        return self.columns(batch, self.losses(outputs, batch), _step_shares(outputs, batch.labels))

    def shown(self, model: Any, outputs: Tensor, shares: list[float]) -> dict[str, Any]:
        written = self.written
        if not (self.verifiable and self._is_own(outputs)):
            written = self._text(self.decode(model, self.batch([0]).to(device_of(model)))[0].tolist())
        return {"steps": shares, "written": written}

    def _is_own(self, outputs: Tensor) -> bool:
        return bool((outputs[0].argmax(dim=-1).cpu() == self.own).all())

    def _text(self, ids: list[int]) -> str:
        return self.tokenizer.decode([token for token in ids if token != self.pad], skip_special_tokens=True)


PROCESSORS = ("repetition_penalty", "sequence_bias")  # others only ban or force tokens


class TokenReading(TextReading):
    """A language model: the shares of its candidates for one token, and the loss of the tokens that it chose itself."""

    def __init__(self, tokenizer: Any, ids: list[int], position: int, remarks: Sequence[str] = ()) -> None:
        pad, _ = pad_token(tokenizer)
        super().__init__({"input_ids": [ids]}, [[-100] * len(ids)], metric=LOSS, pad=pad, remarks=remarks)
        self.tokenizer, self.position = tokenizer, position

    def look(self, model: Any) -> Tensor:
        """Run the whole model, note its candidates, and return the best token at every position: (T,)"""
        outputs = self.outputs(model, self.batch([0]).to(device_of(model)))[0]  # (T, V)
        self.whole = _shares(outputs[self.position])
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
        shares = _shares(outputs[:, self.position])[:, self.candidates]  # (B, K)
        return self.columns(batch, self.losses(outputs, batch), shares, _step_shares(outputs, batch.labels))

    def shown(self, model: Any, outputs: Tensor, shares: list[float]) -> dict[str, Any]:
        now = _shares(outputs[0, self.position])
        known = self.candidates.tolist()
        others = [token for token in now.topk(len(known)).indices.tolist() if token not in known]
        given = [*shares[: len(known)], *now[others].tolist()]
        tokens = [*known, *others]
        bars = [
            {"name": name, "share": share, "was": was}
            for name, share, was in zip(_names(self.tokenizer, tokens), given, self.whole[tokens].tolist(), strict=True)
        ]
        return {"bars": bars, "steps": shares[len(known) :]}


class HiddenReading(TokenReading):
    """A masked language model: what it puts in place of the mask token; without one, of the last word."""

    def __init__(self, model: Any, tokenizer: Any, text: str, pair: str | None, limit: int) -> None:
        ids, cut = _encoded(tokenizer, text, limit)
        remarks = []
        if tokenizer.mask_token_id not in ids:
            special = set(tokenizer.all_special_ids)
            words = [place for place, token in enumerate(ids) if token not in special]
            if not words:
                raise BadData("the text has no word to hide")
            remarks.append(f"the last token is hidden; write {tokenizer.mask_token} to choose another")
            ids = [tokenizer.mask_token_id if place == words[-1] else token for place, token in enumerate(ids)]
        hidden = [place for place, token in enumerate(ids) if token == tokenizer.mask_token_id]
        super().__init__(tokenizer, ids, hidden[0], remarks)
        best = self.look(model).tolist()
        self.labels = [[best[place] if place in hidden else -100 for place in range(len(ids))]]
        self.steps, self.cut = _names(tokenizer, [best[place] for place in hidden]), cut
        self.tokens = _tokens(tokenizer, ids)


class ContinuedReading(TokenReading):
    """A causal language model: its candidates for the next token, and its own greedy continuation."""

    def __init__(self, model: Any, tokenizer: Any, text: str, pair: str | None, limit: int) -> None:
        room = position_limit(model)
        limit = min(limit, limit if room is None else max(1, room - NEW_TOKENS))
        prompt, cut = _encoded(tokenizer, text, limit)
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
        self.steps = _names(tokenizer, self.own)
        self.tokens = _tokens(tokenizer, ids)

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


class EmbeddingReading(TextReading):
    """An encoder without a task: the mean of its last hidden states, and how far it moves."""

    measure = "cosine distance of the embedding"

    def __init__(self, model: Any, tokenizer: Any, text: str, pair: str | None, limit: int) -> None:
        ids, self.cut = _encoded(tokenizer, text, limit)
        super().__init__({"input_ids": [ids]}, metric=LOSS, pad=pad_token(tokenizer)[0])
        self.steps, self.tokens = [], _tokens(tokenizer, ids)
        self.own = self.outputs(model, self.batch([0]).to(device_of(model)))  # (1, hidden)

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        hidden = model(**batch.inputs, **without_cache(model)).last_hidden_state  # (B, T, hidden)
        return hidden.float().mean(dim=1)

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self.columns(batch, 1 - F.cosine_similarity(outputs, self.own))

    def shown(self, model: Any, outputs: Tensor, shares: list[float]) -> dict[str, Any]:
        return {}


# -------------------------------------------------------------------------------------------------------------- helpers


def _encoded(tokenizer: Any, text: str, limit: int) -> tuple[list[int], str]:
    """The token ids of a text, and a word if it was too long."""
    features, remarks = tokenized(Rows({"text": [text]}), tokenizer, [[text]], limit)
    return list(features["input_ids"][0]), _cut(remarks, limit)


def _cut(remarks: Sequence[str], limit: int) -> str:
    return f"the text is cut to its first {limit} tokens" if any("truncated" in one for one in remarks) else ""


def _tokens(tokenizer: Any, ids: Sequence[int]) -> dict[str, tuple[list[str], list[str]]]:
    """Self-attention: a token attends to all of the same text."""
    names = _names(tokenizer, ids)
    return dict.fromkeys(("encoder", "text", "decoder"), (names, names))


def _decoder_tokens(tokenizer: Any, source: Sequence[int], before: Sequence[int]) -> dict[str, Any]:
    written = _names(tokenizer, before)
    return {"decoder": (written, written), "cross": (written, _names(tokenizer, source))}


def _names(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Tokens as a reader knows them; where a token is only part of a character, as the vocabulary writes it."""
    names = []
    for token, raw in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        name = tokenizer.decode([token], clean_up_tokenization_spaces=False)
        names.append((raw or f"#{token}") if "\ufffd" in name or not name else name)
    return names


def _shares(logits: Tensor) -> Tensor:
    return logits.float().softmax(dim=-1)


def _step_shares(outputs: Tensor, labels: Tensor) -> Tensor:
    """The share of every token that is to be predicted: (B, T, V) to (B, steps), the same steps in every row."""
    wanted = labels[0] != -100
    chosen = labels[:, wanted].to(outputs.device)  # (B, steps)
    return _shares(outputs[:, wanted.to(outputs.device)]).gather(2, chosen[..., None])[..., 0]
