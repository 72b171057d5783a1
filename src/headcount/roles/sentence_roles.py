"""The roles: what each counts in a sentence, its baseline, and when a head has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Protocol

import numpy as np

from headcount.errors import BadData, HeadcountError, unknown
from headcount.roles.attention import AttentionView, Transcript, aligning, last_frame
from headcount.roles.sentences import Aligned, Sentence, Sentences, Tokens, universal

RELATIONS = ("nsubj", "obj", "amod", "advmod")  # V19's
DIRECTIONS = ("head->dependent", "dependent->head")


@dataclass(frozen=True)
class Thresholds:
    """When a head has a role: the papers' numbers, and where they have none, our choice (docs/roles.md says which).

    positional: the share of tokens whose largest weight is at one relative position.
    syntactic: by how much the score beats the most frequent relative position.
    rare: the share of tokens whose largest weight is at the rarest token.
    idle: the mean weight on the first token, or on the separators.
    frequent: a sentence counts for rare words only if its rarest token is not among this many most frequent ones.
    induction, previous, duplicate: the mean weight on the token after the last occurrence of this one, on the token
        before, on the last occurrence.
    copying: the share of tokens that are raised most when they are attended to.
    sink: the mean weight on the initial tokens.
    retrieval: the share of a needle's tokens that have the largest weight when they are to be written again.
    streaming: the mean weight on the initial and the recent tokens.
    alignment: the share of a transcript's tokens whose largest weight is where they are spoken, or of a translation's
        whose largest weight is on a word that theirs is aligned to.
    """

    positional: float = 0.9
    syntactic: float = 0.1
    rare: float = 0.5
    idle: float = 0.5
    frequent: int = 500
    induction: float = 0.4
    previous: float = 0.4
    duplicate: float = 0.4
    copying: float = 0.5
    sink: float = 0.5
    retrieval: float = 0.1
    streaming: float = 0.95
    alignment: float = 0.4

    def __post_init__(self) -> None:
        for name in (one.name for one in fields(self) if one.name != "frequent"):
            if not 0 <= getattr(self, name) <= 1:
                raise HeadcountError(
                    f"the threshold {name} is a share from 0 to 1, not {getattr(self, name)}", f"change {{{name}}}"
                )
        if self.frequent < 0:
            raise HeadcountError(f"expected 0 or more frequent tokens, not {self.frequent}", advice="change {frequent}")


@dataclass(frozen=True)
class Counted:
    """Hits, cases and the baseline's hits of one sentence at one site, for each detail of a role (-1, +1; nsubj, obj).

    hits: (heads, details). cases: (details,). baseline: (details,).
    """

    hits: np.ndarray
    cases: np.ndarray
    baseline: np.ndarray


class Measure(Protocol):
    """What a role must define."""

    @property
    def name(self) -> str: ...

    @property
    def details(self) -> tuple[str, ...]: ...

    @property
    def paper(self) -> str: ...

    def holds(self, score: float, baseline: float, detail: str) -> bool: ...

    def count(self, view: AttentionView) -> Counted | None:
        """None if the role does not apply to this attention."""
        ...


@dataclass(frozen=True)
class Positional:
    """How often a head's largest weight is at a fixed distance; special tokens count neither as queries nor as keys.

    A token is a case of a relative position if there is a token, and the head has a choice. In cross-attention, tokens
    are counted from the beginning of each text. The baseline is a head that picks a token at random.

    >>> Positional(reach=2).details
    ('-2', '-1', '+0', '+1', '+2')
    """

    threshold: float = 0.9
    reach: int = 5
    name: str = "positional"
    paper: str = "Voita et al. 2019"

    @property
    def details(self) -> tuple[str, ...]:
        return tuple(f"{offset:+d}" for offset in range(-self.reach, self.reach + 1))

    def holds(self, score: float, baseline: float, detail: str) -> bool:
        return score >= self.threshold

    def count(self, view: AttentionView) -> Counted | None:
        weights, open = view.between_words
        if not weights.shape[1] or not weights.shape[2]:
            return None
        strongest = np.where(open, weights, -1.0).argmax(-1)  # (heads, T)
        choices = open.sum(-1)  # (T,)
        query = np.arange(len(choices))
        hits, counts, chance = [], [], []
        for offset in range(-self.reach, self.reach + 1):
            key = query + offset
            there = (key >= 0) & (key < open.shape[1])
            there[there] &= open[query[there], key[there]]
            there &= choices > 1
            hits.append((strongest[:, there] == key[there]).sum(-1))
            counts.append(there.sum())
            chance.append((1 / choices[there]).sum())
        return Counted(np.stack(hits, axis=-1), np.array(counts), np.array(chance))


@dataclass(frozen=True)
class Rare:
    """How often a head's largest weight is at the rarest token of the sentence, and at one of the two rarest.

    All tokens that are equally rare count, so `counts` should come from more text than the sentences: the training
    data. A sentence counts only if its rarest token is not among the `frequent` most frequent. The baseline is a head
    that picks a token at random. V19 gives no threshold; half of the time at the rarest is our choice.
    """

    counts: Counter[int]
    threshold: float = 0.5
    frequent: int = 500
    name: str = "rare"
    paper: str = "Voita et al. 2019"
    details: tuple[str, ...] = ("rarest", "two rarest")
    common: frozenset[int] = field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        most = frozenset(token for token, _ in self.counts.most_common(self.frequent))
        object.__setattr__(self, "common", most)

    def holds(self, score: float, baseline: float, detail: str) -> bool:
        return detail == "rarest" and score >= self.threshold

    def count(self, view: AttentionView) -> Counted | None:
        if view.site.layer != 0 or not view.of_source:
            return None
        keys = view.keys.ids[view.keys.is_word]
        if not len(keys):
            return None
        seen = np.array([self.counts[int(token)] for token in keys])
        if self.common & {int(token) for token in keys[seen == seen.min()]}:
            return None
        weights, open = view.between_words
        choices = open.sum(-1)  # (T',)
        strongest = np.where(open, weights, -1.0).argmax(-1)  # (heads, T')
        hits, counts, chance = [], [], []
        for place in (0, 1):  # the rarest token, and the two rarest
            rarest = seen <= np.sort(seen)[min(place, len(seen) - 1)]  # (S',)
            visible = (open & rarest).sum(-1)  # (T',)
            counted = (visible > 0) & (choices > visible)
            hits.append((rarest[strongest] & counted).sum(-1))
            counts.append(counted.sum())
            chance.append((visible[counted] / choices[counted]).sum())
        return Counted(np.stack(hits, axis=-1), np.array(counts), np.array(chance))


def token_counts(tokens: Iterable[np.ndarray]) -> Counter[int]:
    """How often each token occurs.

    >>> token_counts([np.array([5, 6]), np.array([5])])
    Counter({5: 2, 6: 1})
    """
    counts: Counter[int] = Counter()
    for ids in tokens:
        counts.update(ids.tolist())
    return counts


@dataclass(frozen=True)
class Idle:
    """How much of a head's weight, on average over the words, is on the first token, or on special tokens behind it.

    The first token is whatever comes first: [CLS], a beginning of text, or a word. The baseline is uniform attention.
    One half, more than on everything else together, is our threshold.
    """

    threshold: float = 0.5
    name: str = "idle"
    paper: str = "Clark et al. 2019"
    details: tuple[str, ...] = ("first", "separator")

    def holds(self, score: float, baseline: float, detail: str) -> bool:
        return score >= self.threshold

    def count(self, view: AttentionView) -> Counted:
        first = np.arange(len(view.keys.ids)) == 0  # (S,)
        hits, counts, chance = [], [], []
        for target in (first, ~first & ~view.keys.is_word):
            visible = (view.open & target).sum(-1)  # (T,)
            choices = view.open.sum(-1)
            counted = view.queries.is_word & (visible > 0) & (choices > visible)
            if view.within:
                counted = counted & ~target  # a first word that attends to itself is not idle
            hits.append((view.weights[:, counted] * target).sum((-2, -1)))
            counts.append(counted.sum())
            chance.append((visible[counted] / choices[counted]).sum())
        return Counted(np.stack(hits, axis=-1), np.array(counts), np.array(chance))


class Syntactic:
    """How often a word's largest weight is at its head, or at its dependent, for each relation and direction.

    The weight to a word is the sum over its pieces, the weight from a word the mean; special tokens do not count as
    words. The baseline always picks the most frequent relative position of the relation in this direction, and a head
    must beat it by `margin`, ten points. In a decoder a word can attend only to earlier words, so only such pairs
    count, for the head and for the baseline.
    """

    name, paper = "syntactic", "Voita et al. 2019"

    def __init__(self, data: Sentences, relations: Sequence[str] = RELATIONS, margin: float = 0.1) -> None:
        self.relations, self.margin = tuple(relations), margin
        self.details = tuple(f"{relation} {way}" for relation in relations for way in DIRECTIONS)
        self.usual = {causal: self._usual(data.sentences, causal) for causal in (False, True)}

    def holds(self, score: float, baseline: float, detail: str) -> bool:
        return score >= baseline + self.margin

    def count(self, view: AttentionView) -> Counted | None:
        if not view.within or not view.of_source or not view.sentence.relations:
            return None
        pieces = pieces_of_words(view.sentence.words, view.keys)  # (words, T)
        there: np.ndarray = np.asarray(pieces.any(1))  # (words,)
        causal = view.site.is_causal
        to_words = view.weights @ pieces.T  # (heads, T, words)
        means = pieces / np.maximum(pieces.sum(1, keepdims=True), 1)
        between = np.where(there, means @ to_words, -1.0)  # (heads, words, words)
        strongest = between.argmax(-1)  # (heads, words)
        hits = np.zeros((len(strongest), len(self.details)))
        cases, usual = np.zeros(len(self.details)), np.zeros(len(self.details))
        for detail, query, key in self.pairs(view.sentence, causal):
            if there[query] and there[key] and not (pieces[query] & pieces[key]).any():
                hits[:, detail] += strongest[:, query] == key
                cases[detail] += 1
                usual[detail] += key - query == self.usual[causal][detail]
        return Counted(hits, cases, usual)

    def pairs(self, sentence: Sentence, causal: bool) -> Iterator[tuple[int, int, int]]:
        """(detail, query word, key word) of every dependency that counts."""
        for dependent, head, name in sentence.relations:
            for place, relation in enumerate(self.relations):
                if relation not in (name, name.partition(":")[0]):
                    continue
                for way, (query, key) in enumerate(((head, dependent), (dependent, head))):
                    if not causal or key < query:
                        yield 2 * place + way, query, key

    def _usual(self, sentences: Iterable[Sentence], causal: bool) -> list[int | None]:
        """The most frequent relative position of each detail."""
        offsets: list[Counter[int]] = [Counter() for _ in self.details]
        for sentence in sentences:
            for detail, query, key in self.pairs(sentence, causal):
                offsets[detail][key - query] += 1
        return [counter.most_common(1)[0][0] if counter else None for counter in offsets]


@dataclass(frozen=True)
class Alignment:
    """How often the frame that a token attends to most is one in which the token is spoken, and one of those where the
    heads that the model names for its time stamps put it, without this head (a forced alignment; see `warped`).

    Weights are standardized and smoothed as for these (see `aligning`). The baseline picks a frame of the speech at
    random.
    """

    threshold: float = 0.4
    name: str = "alignment"
    paper: str = "Radford et al. 2023"
    details: tuple[str, ...] = ("where the token is spoken", "where the other aligning heads put it")

    def holds(self, score: float, baseline: float, detail: str) -> bool:
        return score >= max(self.threshold, baseline)

    def count(self, view: AttentionView) -> Counted | None:
        if not isinstance(view.sentence, Transcript) or not view.queries.is_word.any():
            return None
        text, is_word = view.sentence, view.queries.is_word
        end = last_frame(text.frames, view.weights)
        frame = aligning(view.weights, end)[:, is_word].argmax(-1)  # (heads, T')
        spoken, forced = text.frames[is_word], text.forced.get(None)
        own = [text.forced.get(head, forced) for head in view.site.heads]
        hits, cases, chance = [], [], []
        for spans, by_head in ((spoken, [spoken] * len(own)), (forced, own)):
            counted = 0 if spans is None else len(spoken)
            hits.append([0 if one is None else _inside(at, one) for at, one in zip(frame, by_head, strict=True)])
            cases.append(counted)
            chance.append(0.0 if spans is None else (np.ceil(spans[:, 1]) - np.floor(spans[:, 0])).sum() / end)
        return Counted(np.array(hits).T, np.array(cases), np.array(chance))


def _inside(frames: np.ndarray, spans: np.ndarray) -> int:
    """How many frames (T,) are in their spans (T, 2); a frame belongs to every token that is spoken in a part of it."""
    return int(((frames + 1 > spans[:, 0]) & (frames < spans[:, 1])).sum())


@dataclass(frozen=True)
class WordAlignment:
    """How often the source word that a token of the translation attends to most is one that its word is aligned to.

    A decoder reads a token at one position and predicts it at the one before, and heads may align at either (Chen et
    al. 2020). The weight to a word is the sum over its pieces; special tokens do not count as words. Tokens whose word
    has no link are left out. The baseline picks a source word at random.
    """

    threshold: float = 0.4
    name: str = "alignment"
    paper: str = "Chen et al. 2020"
    details: tuple[str, ...] = ("of the word it predicts", "of the word it reads")

    def holds(self, score: float, baseline: float, detail: str) -> bool:
        return score >= max(self.threshold, baseline)

    def count(self, view: AttentionView) -> Counted | None:
        pair = view.sentence
        if view.site.kind != "cross" or not isinstance(pair, Aligned):
            return None
        pieces = pieces_of_words(pair.words, view.keys)  # (words, S)
        there: np.ndarray = np.asarray(pieces.any(1))  # (words,)
        linked = np.zeros((len(pair.target_words), len(pair.words)), bool)
        for word, other in pair.links:
            linked[other, word] = there[word]
        strongest = np.where(there, view.weights @ pieces.T, -1.0).argmax(-1)  # (heads, T) a source word
        of_token = pieces_of_words(pair.target_words, view.queries)  # (target words, T)
        right = of_token.T @ linked  # (T, words) which source words each token is aligned to
        hits, cases, chance = [], [], []
        for read in (slice(1, None), slice(None)):  # predicted at the position before, read at this one
            aligned = right[read]
            counted = aligned.any(-1)
            at = strongest[:, : len(aligned)][:, counted]
            hits.append(aligned[counted][np.arange(counted.sum()), at].sum(-1))
            cases.append(counted.sum())
            chance.append(aligned[counted].sum() / max(1, there.sum()))
        return Counted(np.stack(hits, axis=-1), np.array(cases), np.array(chance))


def pieces_of_words(words: Sequence[tuple[int, int]], tokens: Tokens) -> np.ndarray:
    """(words, T) which tokens are pieces of which words, by their shared characters.

    >>> words = ((0, 2), (3, 11), (12, 15))  # an unlikely one
    >>> spans = np.array([(0, 0), (0, 2), (3, 5), (5, 11), (12, 15)])
    >>> pieces_of_words(words, Tokens(np.arange(5), np.arange(5) > 0, spans)).astype(int).tolist()
    [[0, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]]
    """
    assert tokens.spans is not None
    start, end = np.array(words).T[..., None]  # (words, 1)
    overlap = np.minimum(end, tokens.spans[:, 1]) - np.maximum(start, tokens.spans[:, 0])
    return (overlap > 0) & tokens.is_word


def chosen_relations(data: Sentences, asked: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The relations to count, and remarks; one that was asked for and never occurs is refused."""
    occurring = data.relations()
    if asked is None:
        missing = [name for name in RELATIONS if name not in occurring]
        remarks = [f"the data has no {name}" for name in missing] if occurring else []
        return [name for name in RELATIONS if name in occurring], remarks
    names = list(dict.fromkeys(universal(name) for name in asked))
    for name in names:
        if name not in occurring:
            if not occurring:
                raise BadData(
                    f"the data has no dependencies, so no relation {name!r}", advice="pass a CoNLL-U file as {data}"
                )
            raise BadData(f"in this data: {unknown('relation', name, occurring)}")
    return names, []
