"""`read`: one text as a model of any kind reads it, and a reading for each kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headcount.errors import BadData, UnsupportedModel
from headcount.explore.text_reading import (
    TextReading,
    cut_remark,
    decoder_tokens,
    encoded,
    self_tokens,
    shares_of,
    step_shares,
    token_names,
)
from headcount.structure import device_of, position_limit, start_token, without_cache
from headcount.tasks import (
    SPAN,
    BaseTask,
    Batch,
    Classification,
    Metric,
    QuestionAnswering,
    TokenClassification,
    Translation,
    guess_kind,
    pad_token,
)

BARS = 8  # candidates for one token that are shown
NEW_TOKENS = 10  # of a continuation
LOSS = Metric("loss", lambda sums: sums[..., 0], higher_is_better=False, relative=True)


def read(model: Any, tokenizer: Any, text: str, pair: str | None = None, max_length: int | None = None) -> TextReading:
    """Read one text, or a pair of texts, as the model's class asks for.

    >>> from headcount.tasks.classification import toy_classifier
    >>> model, task = toy_classifier()
    >>> reading = read(model, task.tokenizer, "a fine film")
    >>> reading.tokens["encoder"][0], sorted(reading.reply(model))
    (['<s>', 'a', 'fine', 'film', '</s>'], ['bars', 'loss'])
    """
    main = getattr(model, "main_input_name", "input_ids")
    if main != "input_ids":
        raise UnsupportedModel(f"{type(model).__name__} reads {main}; only models that read text can be explored")
    make = READINGS.get(guess_kind(model) or "")
    if make is None or (make is EmbeddingReading and model.config.is_encoder_decoder):
        raise UnsupportedModel(
            f"{type(model).__name__} cannot be explored; expected a classifier, a tagger, a model that answers "
            "questions, a translator, a language model or an encoder without a task"
        )
    if pair is not None and make not in (ClassReading, SpanReading):
        raise BadData(f"{type(model).__name__} reads one text, not a pair", advice="leave out {pair}")
    if not text.strip():
        raise BadData("the text is empty")
    limits = [n for n in (max_length, position_limit(model), tokenizer.model_max_length) if n is not None]
    with torch.inference_mode():
        reading: TextReading = make(model, tokenizer, text, pair, min(limits))
    reading.check(model)
    return reading


class ClassReading(Classification, TextReading):
    """A classifier: shares of the classes; several where each is decided alone, a score where there is one output."""

    def __init__(self, model: Any, tokenizer: Any, text: str, pair: str | None, limit: int) -> None:
        row = {"text": text, "label": 0} | ({} if pair is None else {"pair": pair})
        second = None if pair is None else "pair"
        super().__init__([row], tokenizer, text="text", pair=second, label="label", metric="loss", max_length=limit)
        config = model.config
        self.steps, self.cut = [], cut_remark(self.remarks, limit)
        self.several = getattr(config, "problem_type", None) == "multi_label_classification"
        self.scored = config.num_labels == 1
        self.measure = "how far the score moves" if self.scored else TextReading.measure
        self.classes = [str(config.id2label.get(place, place)) for place in range(config.num_labels)]
        self.own: Tensor = self.outputs(model, self.batch([0]).to(device_of(model)))  # (1, C)
        self.labels = [int(self.own.argmax())]
        ids = self.features["input_ids"][0]
        self.tokens = self_tokens(tokenizer, ids)
        if config.is_encoder_decoder:
            self.tokens |= decoder_tokens(tokenizer, ids, [start_token(config), *ids[:-1]])

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        if self.scored:
            return (outputs - self.own).abs()[:, 0]
        if self.several:
            decided = (self.own > 0).to(outputs).expand_as(outputs)
            return F.binary_cross_entropy_with_logits(outputs, decided, reduction="none").sum(dim=1)
        return super().losses(outputs, batch)

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        shares = outputs.float() if self.scored else outputs.float().sigmoid() if self.several else shares_of(outputs)
        return self.columns(batch, self.losses(outputs, batch), shares)

    def shown(self, model: Any, outputs: Tensor, shares: list[float]) -> dict[str, Any]:
        bars = [{"name": name, "share": share} for name, share in zip(self.classes, shares, strict=True)]
        return {"score": shares[0]} if self.scored else {"bars": bars}

    def check(self, model: Any) -> list[str]:
        return BaseTask.check(self, model)  # the label is the model's own answer


class TagReading(TokenClassification, TextReading):
    """A tagger: the tag of every word, and the share of the tag that the whole model chose."""

    def __init__(self, model: Any, tokenizer: Any, text: str, pair: str | None, limit: int) -> None:
        words = text.split()
        names = {"label2id": model.config.label2id, "num_labels": model.config.num_labels}
        super().__init__(
            [{"text": words}], tokenizer, text="text", metric="loss", max_length=limit, labels=False, **names
        )
        self.cut = cut_remark(self.remarks, limit)
        self.names = [str(model.config.id2label.get(place, place)) for place in range(model.config.num_labels)]
        self.read_at = [(word, place) for word, place in zip(words, self.starts[0], strict=True) if place is not None]
        best = self._best(self.outputs(model, self.batch([0]).to(device_of(model))))
        places = [place for _, place in self.read_at]
        ids = self.features["input_ids"][0]
        self.labels = [[best[place] if place in places else -100 for place in range(len(ids))]]
        self.steps = [word for word, _ in self.read_at]
        self.tokens = self_tokens(tokenizer, ids)

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        assert batch.labels is not None
        return self.columns(batch, self.losses(outputs, batch), step_shares(outputs, batch.labels))

    def shown(self, model: Any, outputs: Tensor, shares: list[float]) -> dict[str, Any]:
        best = self._best(outputs)
        tagged = [(word, self.names[best[place]]) for word, place in self.read_at]
        return {"steps": shares, "written": " ".join(word if tag == "O" else f"{word}/{tag}" for word, tag in tagged)}

    def _best(self, outputs: Tensor) -> list[int]:
        return outputs[0].argmax(dim=-1).tolist()

    def check(self, model: Any) -> list[str]:
        return BaseTask.check(self, model)


class SpanReading(QuestionAnswering, TextReading):
    """A model that answers a question, the text, from a context, the pair: where its answer starts and ends."""

    def __init__(self, model: Any, tokenizer: Any, text: str, pair: str | None, limit: int) -> None:
        if pair is None or not pair.strip():
            raise BadData(f"{type(model).__name__} answers a question from a second text", advice="pass {pair}")
        row = {"text": text, "pair": pair}
        super().__init__(
            [row], tokenizer, text="text", pair="pair", metric="loss", max_length=limit, stride=0, labels=False
        )
        if len(self.windows[0]) > 1:
            self.cut, self.windows = cut_remark(["truncated"], limit), [self.windows[0][:1]]
        batch = self.batch([0]).to(device_of(model))
        span = self.predictions(self.outputs(model, batch), batch)
        self.labels = [list(divmod(int(span), SPAN))]
        ids = self.windows[0][0].ids
        self.steps = token_names(tokenizer, [ids[place] for place in self.labels[0]])
        self.tokens = self_tokens(tokenizer, ids)

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        assert batch.labels is not None
        ends = shares_of(outputs).gather(2, batch.labels.to(outputs.device)[..., None])[..., 0]  # (B, 2)
        return self.columns(batch, self.losses(outputs, batch), ends)

    def shown(self, model: Any, outputs: Tensor, shares: list[float]) -> dict[str, Any]:
        span = int(self.predictions(outputs, self.batch([0])))
        return {"steps": shares, "written": self.answer(0, *divmod(span, SPAN))}


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
        self.cut = cut_remark(self.remarks, limit)
        self.written = self._text(own)
        self.steps = token_names(tokenizer, own)
        before = [start_token(model.config), *own[:-1]]
        source = self.features["input_ids"][0]
        self.tokens = self_tokens(tokenizer, source) | decoder_tokens(tokenizer, source, before)
        # Where no processor of logits decided anything, an output whose best tokens are these is this output.
        plain = all(getattr(model.generation_config, name, None) in (None, 1.0) for name in PROCESSORS)
        self.verifiable = plain and self._is_own(self.outputs(model, self.batch([0]).to(device_of(model))))

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        assert batch.labels is not None
        return self.columns(batch, self.losses(outputs, batch), step_shares(outputs, batch.labels))

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


class EmbeddingReading(TextReading):
    """An encoder without a task: the mean of its last hidden states, and how far it moves."""

    measure = "cosine distance of the embedding"

    def __init__(self, model: Any, tokenizer: Any, text: str, pair: str | None, limit: int) -> None:
        ids, self.cut = encoded(tokenizer, text, limit)
        super().__init__({"input_ids": [ids]}, metric=LOSS, pad=pad_token(tokenizer)[0])
        self.steps, self.tokens = [], self_tokens(tokenizer, ids)
        self.own = self.outputs(model, self.batch([0]).to(device_of(model)))  # (1, hidden)

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        hidden = model(**batch.inputs, **without_cache(model)).last_hidden_state  # (B, T, hidden)
        return hidden.float().mean(dim=1)

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self.columns(batch, 1 - F.cosine_similarity(outputs, self.own))

    def shown(self, model: Any, outputs: Tensor, shares: list[float]) -> dict[str, Any]:
        return {}


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


# By the kind of task that the model's class is made for.
READINGS: dict[str, Any] = {
    "classification": ClassReading,
    "regression": ClassReading,
    "tagging": TagReading,
    "answering": SpanReading,
    "translation": WrittenReading,
    "summarization": WrittenReading,
    "masked": HiddenReading,
    "causal": ContinuedReading,
    "embedding": EmbeddingReading,
}
