"""A model's attention on sentences, tokenized, with special tokens told apart; and on recordings of speech."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.ndimage import median_filter
from torch import Tensor

from headcount.engine import batches_by_length
from headcount.errors import BadData, HeadcountError
from headcount.heads import Head
from headcount.intervene import capture
from headcount.roles.sentences import Aligned, Sentence, Tokens
from headcount.scoring import frozen
from headcount.structure import (
    AttentionSite,
    anatomy,
    device_of,
    embedding_rows,
    kernel_of,
    position_limit,
    start_token,
)
from headcount.tasks import SpeechRecognition, length_limit, pad_token, padded

TOKENS = 1024  # per batch: attention maps of all layers are kept at once
QUIET = 1.4  # below the loudest frame of a recording, in the units of its features: 56 dB


class AttentionReader:
    """Runs a model on sentences and gives their attention; `remarks` are what the user should know."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model
        self.remarks: list[str] = []
        self.device = device_of(model)
        self.pad, self.special = pad_token(tokenizer)[0], special_ids(tokenizer)
        self.body, self.kinds = self._body()
        self.sites = [site for site in anatomy(model).sites if site.kept and site.kind in self.kinds]
        if not self.sites:
            raise HeadcountError("the model has no attention heads left that read text")
        kernel = kernel_of(model)
        if kernel != "eager":
            self.remarks.append(
                f"{kernel} gives no attention maps; they are measured by running it on the identity as well"
            )

    def views(
        self, data: EncodedSentences, progress: Callable[[float], None] | None = None
    ) -> Iterator[tuple[int, AttentionView]]:
        """Every sentence's index and its attention at every site."""
        done = 0
        for indices in batches_by_length(data.lengths, TOKENS):
            given = None if data.targets is None else [data.targets[i] for i in indices]
            targets, maps = self._run([data.tokens[i] for i in indices], given)
            for row, index in enumerate(indices):
                target = targets[row] if targets else None
                for site in self.sites:
                    for view in self._views(site, maps[site.name], row, data, index, target):
                        yield index, view
            done += len(indices)
            if progress is not None:
                progress(done / len(data))

    def _views(
        self,
        site: AttentionSite,
        maps: list[np.ndarray],
        row: int,
        data: EncodedSentences,
        index: int,
        target: Tokens | None,
    ) -> Iterator[AttentionView]:
        source = data.tokens[index]
        decodes = target is not None and site.kind in ("decoder", "cross")
        queries = target if target is not None and decodes else source
        keys = queries if decodes and site.kind == "decoder" else source
        for weights in maps:  # several if layers share the site
            yield AttentionView(
                site, weights[row, :, : len(queries.ids), : len(keys.ids)], queries, keys, data.sentences[index]
            )

    def _run(
        self, sources: list[Tokens], targets: list[Tokens] | None = None
    ) -> tuple[list[Tokens], dict[str, list[np.ndarray]]]:
        """What a translator's decoder read for each sentence, and every site's maps (B, heads, T, S).

        targets: the translations that it reads; without them, it reads what it generates.
        """
        ids = padded([one.ids.tolist() for one in sources], self.pad).to(self.device)
        mask = padded([[1] * len(one.ids) for one in sources], 0).to(self.device)
        given: dict[str, Any] = {"input_ids": ids, "attention_mask": mask}
        made = None
        with frozen(self.model), torch.no_grad():
            if targets is not None:
                given |= {"decoder_input_ids": padded([one.ids.tolist() for one in targets], self.pad).to(self.device)}
            elif "cross" in self.kinds:
                made = self.model.generate(**given, num_beams=1, do_sample=False, max_new_tokens=self._room(ids))
                given |= {"decoder_input_ids": made}
            elif any(site.kind == "decoder" for site in self.sites):
                given |= {"use_cache": False}
            with capture(self.model, contexts=False) as seen:
                self.body(**given)
        maps = {site.name: [w.float().cpu().numpy() for w in seen.attention.calls[site.name]] for site in self.sites}
        return targets or ([] if made is None else [self._made(row) for row in made]), maps

    def _room(self, ids: Tensor) -> int:
        """How many tokens the model can generate."""
        new, room = math.ceil(1.5 * ids.shape[1]) + 20, position_limit(self.model)
        return new if room is None else min(new, room - 1)

    def _made(self, row: Tensor) -> Tokens:
        """What the model generated, without the padding behind it."""
        ids = row.cpu().numpy()
        written = np.flatnonzero(ids != self.pad)
        ids = ids[: written[-1] + 1 if len(written) else 1]
        is_word = ~np.isin(ids, list(self.special))
        is_word[0] = False  # the start token
        return Tokens(ids, is_word, is_source=False)

    def _body(self) -> tuple[Any, tuple[str, ...]]:
        """The part of the model to run, and the kinds of attention that it has."""
        model: Any = self.model
        if model.config.is_encoder_decoder and model.main_input_name == "input_ids":
            if model.can_generate():
                return model, ("encoder", "decoder", "cross")
            self.remarks.append(f"{type(model).__name__} cannot generate text: only its encoder is analysed")
            return model.get_encoder(), ("encoder",)
        if hasattr(model, "text_model"):
            return model.text_model, ("text",)
        if model.main_input_name != "input_ids":
            raise HeadcountError(
                f"{type(model).__name__} reads {model.main_input_name}; roles exist in models that read text, and in "
                "Whisper with recordings",
                advice="give Whisper's processor as {tokenizer}",
            )
        return model.base_model, ("encoder", "decoder", "text")


@dataclass(frozen=True)
class Transcript(Sentence):
    """A recording's text, with the frames of the encoder in which each token is spoken: (T, 2), nan if it is silent.

    forced: by head, the frames of each token that is spoken (T', 2) in the alignment by the heads that the model names
    for its time stamps, without this head; under None by all of them. Empty if it names fewer than two.
    """

    frames: np.ndarray = field(default_factory=lambda: np.empty((0, 2)))
    forced: dict[Head | None, np.ndarray] = field(default_factory=dict)


class SpeechReader:
    """Runs Whisper on recordings and their transcripts, and gives its cross-attention."""

    def __init__(self, model: Any, processor: Any) -> None:
        self.model, self.remarks = model, list[str]()
        self.sites = [site for site in anatomy(model).sites if site.kept and site.kind == "cross"]
        if not self.sites:
            raise HeadcountError("the model has no cross-attention heads left")

    def views(
        self, task: SpeechRecognition, progress: Callable[[float], None] | None = None
    ) -> Iterator[tuple[int, AttentionView]]:
        """Every recording's index and its attention at every site: from what predicts each token to the frames."""
        for index in range(len(task)):
            assert task.labels is not None
            features = task.batch([index]).inputs["input_features"]  # (1, mels, frames)
            ids, first = task.labels[index][:-1], len(task.start) - 1  # without the end
            given = torch.tensor([[*task.start, *ids[:-1]]], device=device_of(self.model))
            with frozen(self.model), torch.no_grad():
                heard = self.model.get_encoder()(features.to(given.device, self.model.dtype))
                with capture(self.model, contexts=False) as seen:
                    self.model(encoder_outputs=heard, decoder_input_ids=given, use_cache=False)
            frames = spoken_frames(features[0].numpy(), [task.tokenizer.decode([token]) for token in ids])
            frames = frames * heard[0].shape[1] / features.shape[-1]
            spoken = Tokens(np.array(ids), np.isfinite(frames[:, 0]))
            maps = {site.name: seen.attention[site][0, :, first:].float().cpu().numpy() for site in self.sites}
            forced = self._forced(maps, frames, spoken.is_word)
            text = Transcript(task.targets[index], place=task.places[index], frames=frames, forced=forced)
            sound = Tokens(np.arange(heard[0].shape[1]), np.ones(heard[0].shape[1], bool))
            for site in self.sites:
                yield index, AttentionView(site, maps[site.name], spoken, sound, text)
            if progress is not None:
                progress((index + 1) / len(task))

    def _forced(
        self, maps: dict[str, np.ndarray], frames: np.ndarray, is_word: np.ndarray
    ) -> dict[Head | None, np.ndarray]:
        """Where dynamic time warping puts the tokens by the heads that the model's generation config names."""
        named = getattr(self.model.generation_config, "alignment_heads", None) or []
        listed = {Head("cross", layer, index) for layer, index in named}
        if not is_word.any():
            return {}
        found: dict[Head, np.ndarray] = {}
        for site in self.sites:
            standard = aligning(maps[site.name], last_frame(frames, maps[site.name]))
            found |= {head: one[is_word] for head, one in zip(site.heads, standard, strict=True) if head in listed}
        if len(found) < 2:
            return {}
        total = np.sum(list(found.values()), axis=0)
        return {None: warped(total), **{head: warped(total - one) for head, one in found.items()}}


def last_frame(frames: np.ndarray, weights: np.ndarray) -> int:
    """How many frames there are until the last token has been spoken."""
    return min(math.ceil(np.nanmax(frames)), weights.shape[-1])


def aligning(weights: np.ndarray, end: int) -> np.ndarray:
    """Weights (heads, T, S) on the first `end` frames, standardized over tokens and smoothed over seven frames.

    A frame that all tokens attend to aligns nothing; Whisper does the same for its time stamps (Radford et al. 2023).
    """
    weights = weights[..., :end]
    deviation = weights.std(1, keepdims=True)
    standard = (weights - weights.mean(1, keepdims=True)) / np.where(deviation > 0, deviation, 1)
    return np.asarray(median_filter(standard, size=(1, 1, 7)))


def warped(weights: np.ndarray) -> np.ndarray:
    """Dynamic time warping: from which frame to which each token is on the best path through weights (T, S), (T, 2).

    >>> warped(np.array([[5.0, 5.0, 0.0, 0.0], [0.0, 0.0, 5.0, 5.0]])).tolist()
    [[0.0, 2.0], [2.0, 4.0]]
    """
    tokens, frames = weights.shape
    best = np.full((tokens + 1, frames + 1), -np.inf)
    best[0, 0] = 0.0
    for token in range(1, tokens + 1):
        for frame in range(1, frames + 1):
            before = max(best[token - 1, frame - 1], best[token - 1, frame], best[token, frame - 1])
            best[token, frame] = weights[token - 1, frame - 1] + before
    spans, token, frame = np.zeros((tokens, 2)), tokens, frames
    spans[:, 0] = frames
    while token and frame:
        since, until = spans[token - 1]
        spans[token - 1] = min(since, frame - 1), max(until, frame)
        back = ((token - 1, frame - 1), (token - 1, frame), (token, frame - 1))
        token, frame = max(back, key=lambda place: best[place])
    return spans


def spoken_frames(features: np.ndarray, tokens: Sequence[str]) -> np.ndarray:
    """From which frame to which each token is spoken, if all letters take the same time: (T, 2), nan without letters.

    >>> spoken_frames(np.array([[-1.0, 1.0, 1.0, 1.0, -1.0]]), [" a", "bc", "."]).tolist()
    [[1.0, 2.0], [2.0, 4.0], [nan, nan]]

    features: (mels, frames), Whisper's: a fourth of the decimal logarithm of the power. This depends on nothing in the
    model. Speech is from the first frame to the last that is at most 56 dB below the loudest.
    """
    loudness = features.max(0)
    loud = np.flatnonzero(loudness > loudness.max() - QUIET)
    letters = np.array([sum(map(str.isalnum, token)) for token in tokens], float)
    if not letters.sum():
        return np.full((len(tokens), 2), np.nan)
    until = loud[0] + (loud[-1] + 1 - loud[0]) * letters.cumsum() / letters.sum()
    since = np.concatenate([loud[:1], until[:-1]])
    return np.where(letters[:, None] > 0, np.stack([since, until], axis=1), np.nan)


@dataclass(frozen=True)
class AttentionView:
    """A sentence's attention at one site: weights (heads, T, S) from the tokens `queries` to the tokens `keys`."""

    site: AttentionSite
    weights: np.ndarray
    queries: Tokens
    keys: Tokens
    sentence: Sentence

    @property
    def of_source(self) -> bool:
        """Whether the keys are tokens of the sentence itself, not of the model's translation."""
        return self.keys.is_source

    @property
    def within(self) -> bool:
        """Whether this is self-attention, not cross-attention."""
        return self.queries is self.keys

    @cached_property
    def open(self) -> np.ndarray:
        """(T, S) which keys a query can attend to."""
        shape = self.weights.shape[1:]
        return np.tril(np.ones(shape, bool)) if self.site.is_causal and self.within else np.ones(shape, bool)

    @cached_property
    def between_words(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights (heads, T', S') and `open` (T', S') between pieces of words, without special tokens."""
        queries, keys = self.queries.is_word, self.keys.is_word
        return self.weights[:, queries][:, :, keys], self.open[queries][:, keys]


@dataclass(frozen=True)
class EncodedSentences:
    """Sentences and their tokens, which engines divide into shards.

    targets: what a decoder reads of the translation of each, where they are given: the start, and all but the end.
    """

    sentences: tuple[Sentence, ...]
    tokens: tuple[Tokens, ...]
    targets: tuple[Tokens, ...] | None = None

    def __len__(self) -> int:
        return len(self.sentences)

    @cached_property
    def lengths(self) -> list[int]:
        return [len(one.ids) for one in self.tokens]

    def ids(self) -> list[list[int]]:
        """The token ids of every sentence."""
        return [one.ids.tolist() for one in self.tokens]

    def subset(self, indices: Sequence[int]) -> EncodedSentences:
        targets = None if self.targets is None else tuple(self.targets[i] for i in indices)
        return EncodedSentences(
            tuple(self.sentences[i] for i in indices), tuple(self.tokens[i] for i in indices), targets
        )


def encode(
    model: Any, tokenizer: Any, sentences: tuple[Sentence, ...], max_length: int | None = None
) -> tuple[EncodedSentences, list[str]]:
    """The tokens of every sentence, and of its translation where that is aligned; remarks on what was truncated."""
    tokens, remarks = _encoded(model, tokenizer, [one.text for one in sentences], sentences, max_length)
    if not sentences or not isinstance(sentences[0], Aligned):
        return EncodedSentences(sentences, tokens), remarks
    if not model.config.is_encoder_decoder or not model.can_generate():
        raise HeadcountError(
            f"{type(model).__name__} is not a translator, so it has no cross-attention to align words by",
            advice="leave out the column alignment",
        )
    texts = [one.target for one in sentences if isinstance(one, Aligned)]
    ends, cut = _encoded(model, tokenizer, texts, sentences, max_length, target=True)
    start = Tokens(np.array([start_token(model.config)]), np.array([False]), np.zeros((1, 2), int))
    return EncodedSentences(sentences, tokens, tuple(one.after(start) for one in ends)), [*remarks, *cut]


def _encoded(
    model: Any,
    tokenizer: Any,
    texts: list[str],
    sentences: tuple[Sentence, ...],
    max_length: int | None,
    target: bool = False,
) -> tuple[tuple[Tokens, ...], list[str]]:
    limits = [length_limit(tokenizer, max_length), position_limit(model)]
    limit = min((n for n in limits if n is not None), default=None)
    options: dict[str, Any] = {} if limit is None else {"truncation": True, "max_length": limit}
    fast = bool(getattr(tokenizer, "is_fast", False))
    if not fast and any(one.relations or isinstance(one, Aligned) for one in sentences):
        raise HeadcountError(
            f"{type(tokenizer).__name__} does not say where in the text its tokens are, so they cannot be "
            "joined into words; use a fast tokenizer"
        )
    given: dict[str, Any] = {"text_target" if target else "text": texts}
    encoded = tokenizer(**given, return_offsets_mapping=fast, verbose=False, **options)
    rows, cut, special = embedding_rows(model), 0, list(special_ids(tokenizer))
    found = []
    for place, (sentence, ids) in enumerate(zip(sentences, encoded["input_ids"], strict=True)):
        if not ids:
            raise BadData(f"{sentence.place}: the text is empty")
        if rows is not None and max(ids) >= rows:
            raise BadData(
                f"the tokenizer does not fit the model: {sentence.place} has token id {max(ids)}, "
                f"the model has embeddings for {rows} tokens"
            )
        spans = np.array(encoded["offset_mapping"][place] if fast else [(0, 0)] * len(ids))
        cut += len(ids) == limit
        array = np.array(ids)
        found.append(Tokens(array, ~np.isin(array, special), spans))
    remarks = [f"{cut} of {len(found)} sentences reach the limit of {limit} tokens and may be truncated"] if cut else []
    return tuple(found), remarks


def special_ids(tokenizer: Any) -> set[int]:
    """The ids of special tokens; unknown and masked tokens stand in for words."""
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id, tokenizer.mask_token_id}
