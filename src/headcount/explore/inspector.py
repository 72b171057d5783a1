"""`Inspector`: what a page asks of a model. Answers are ready for JSON; the last few texts are kept."""

from __future__ import annotations

import base64
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from headcount.engine import tokens_for
from headcount.errors import HeadcountError
from headcount.evaluation import make_plan, measure
from headcount.explore.readings import read
from headcount.explore.text_reading import TextReading
from headcount.heads import Head
from headcount.intervene import capture, masked
from headcount.structure import AttentionSite, anatomy, came_from, device_of, whole_anatomy
from headcount.tasks import guess_kind

KEPT = 8  # texts whose readings, sweeps and attention are kept
LEVELS = 65535  # steps of an attention weight as it is sent

Text = tuple[str, str | None]  # a text, and the second one of a pair


class Inspector:
    """Reads texts with one model, whole or with units off.

    >>> from headcount.tasks.classification import toy_classifier
    >>> model, task = toy_classifier()
    >>> inspector = Inspector(model, task.tokenizer)
    >>> inspector.answer(("a fine film", None), ["encoder.0.1", "encoder_ffn.1"]).keys()
    dict_keys(['loss', 'bars'])
    >>> inspector.attention(("a fine film", None), "encoder.1.3")["rows"]
    5

    max_length: longer texts are cut to this many tokens. name: what to call the model.
    pruned: a smaller model to compare with.

    Several threads may ask at once: the model answers them one after the other.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, max_length: int = 128, name: str | None = None, pruned: Any = None
    ) -> None:
        self.model, self.tokenizer, self.max_length = model.eval(), tokenizer, max_length
        self.smaller = None if pruned is None else pruned.eval()
        self.name = name or came_from(model) or type(model).__name__
        self.found = whole_anatomy(model)
        self.heads = anatomy(model).heads
        self.lock = RLock()
        self._readings: OrderedDict[Any, TextReading] = OrderedDict()
        self._sweeps: OrderedDict[Any, Sweep] = OrderedDict()
        self._attention: OrderedDict[Any, dict[str, Tensor]] = OrderedDict()

    def facts(self) -> dict[str, Any]:
        """What the page has to know of the model before any text is read."""
        sites = [
            {"name": site.name, "kind": site.kind, "layer": site.layer, "of": site.original}
            | ({"heads": list(site.kept)} if isinstance(site, AttentionSite) else {"neurons": len(site.kept)})
            | ({"also": list(site.also_layers)} if site.also_layers else {})
            for site in self.found.sites
        ]
        kind = guess_kind(self.model) or "embedding"
        smaller = None if self.smaller is None else came_from(self.smaller) or type(self.smaller).__name__
        return {"model": self.name, "class": type(self.model).__name__, "kind": kind, "sites": sites, "pruned": smaller}

    def reading(self, text: Text) -> TextReading:
        """The text as the model reads it."""
        with self.lock:
            return _kept(self._readings, text, lambda: read(self.model, self.tokenizer, *text, self.max_length))

    def read(self, text: Text) -> dict[str, Any]:
        """The tokens of a text, and what the whole model makes of it."""
        reading = self.reading(text)
        kinds = {site.kind for site in self.found.sites if isinstance(site, AttentionSite)}
        return {
            "text": text[0],
            "pair": text[1],
            "tokens": {kind: names for kind, names in reading.tokens.items() if kind in kinds},
            "steps": reading.steps,
            "measure": reading.measure,
            "remarks": list(filter(None, [reading.cut, reading.note])),
            "answer": self.answer(text),
        }

    def answer(self, text: Text, off: Sequence[str] = ()) -> dict[str, Any]:
        """What the model answers with these units off."""
        with self.lock:
            reading = self.reading(text)  # before the masks are set: its own answer is that of the whole model
            with masked(self.model, off=off):
                return reading.reply(self.model)

    def pruned(self, text: Text) -> dict[str, Any]:
        """What the smaller model answers; its loss is that of the whole model's answer."""
        if self.smaller is None:
            raise HeadcountError("no pruned model was given to compare with", advice="pass {pruned}")
        with self.lock:
            return self.reading(text).reply(self.smaller)

    def attention(self, text: Text, head: str, off: Sequence[str] = ()) -> dict[str, Any]:
        """The attention weights of one head: rows attend to columns."""
        chosen = Head.parse(head)
        site = self.found.site(chosen)
        if chosen.index not in site.places or not isinstance(site, AttentionSite):
            raise HeadcountError(f"this model does not have the head {head}")
        with self.lock:
            maps = _kept(self._attention, (text, tuple(sorted(off))), lambda: self._watch(text, off))
        weights = maps[site.name][site.places[chosen.index]]  # (T, S)
        return {"head": head, "rows": weights.shape[0], "columns": weights.shape[1], "weights": packed(weights)}

    def effects(self, text: Text, seconds: float | None = None) -> dict[str, Any]:
        """What each head's absence alone does to the loss, as far as that can be found within this time.

        Ask again until `done`. In between, others can ask the model something else.
        """
        reading = self.reading(text)
        with self.lock:
            sweep = _kept(self._sweeps, text, lambda: Sweep(self.model, reading, self.heads))
            sweep.advance(seconds)
            return {"effects": sweep.effects(), "done": sweep.done, "of": len(self.heads)}

    @torch.inference_mode()
    def _watch(self, text: Text, off: Sequence[str]) -> dict[str, Tensor]:
        """The attention of every site, (heads, T, S); where layers share a module, that of the first."""
        reading = self.reading(text)
        with masked(self.model, off=off), capture(self.model, contexts=False) as seen:
            reading.outputs(self.model, reading.batch([0]).to(device_of(self.model)))
        return {name: calls[0][0].float().cpu() for name, calls in seen.attention.calls.items()}


class Sweep:
    """Every head off alone on one text, in steps: the engine's own plan and measurements, a few at a time."""

    def __init__(self, model: Any, reading: TextReading, heads: Sequence[Head]) -> None:
        masks = [frozenset[Head](), *(frozenset([head]) for head in heads)]
        plan = make_plan(model, reading, masks)
        self._measured: Iterator[Any] = measure(model, reading, plan, [[0]], tokens_for(model))
        self.values: dict[str, float] = {}  # the loss by head; that of the whole model under the empty name
        self.done = False

    def advance(self, seconds: float | None = None) -> None:
        """Measure on for about this time; without a limit, to the end."""
        started = time.monotonic()
        while not self.done:
            one = next(self._measured, None)
            if one is None:
                self.done = True
            else:
                self.values["".join(map(str, one.mask))] = float(one.statistics[0, 0])
            if seconds is not None and time.monotonic() - started > seconds:
                break

    def effects(self) -> dict[str, float]:
        """The change of the loss without each head, of those measured so far."""
        whole = self.values.get("")
        return {} if whole is None else {head: loss - whole for head, loss in self.values.items() if head}


def packed(weights: Tensor) -> str:
    """Weights from 0 to 1 in two bytes each, low byte first, as text."""
    levels = (weights.clamp(0, 1) * LEVELS).round().to(torch.int32).numpy().astype("<u2")
    return base64.b64encode(levels.tobytes()).decode()


def _kept(store: OrderedDict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    """What is kept under a key, made if it is not there; the oldest ones go."""
    if key not in store:
        store[key] = make()
        while len(store) > KEPT:
            store.popitem(last=False)
    store.move_to_end(key)
    return store[key]
