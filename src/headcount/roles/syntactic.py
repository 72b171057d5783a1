"""Syntactic heads: the strongest weight hits the word at the other end of a dependency (V19 section 5.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from headcount.errors import BadData, unknown
from headcount.roles.encoding import Tokens
from headcount.roles.measure import Counted
from headcount.roles.reading import CAUSAL, View
from headcount.roles.sentences import Sentence, Sentences, universal

RELATIONS = ("nsubj", "obj", "amod", "advmod")  # V19's
DIRECTIONS = ("head->dependent", "dependent->head")


class Syntactic:
    """How often a word's strongest weight is at its head, or at its dependent, for each relation and direction.

    The weight to a word is the sum over its pieces, the weight from a word the mean; special tokens are no words. The
    baseline always picks the most frequent relative position of this relation in this direction, and a head must beat
    it by `margin`, ten points. In a decoder only words that stand before the other one can be looked at, so only these
    pairs count, there and for the baseline.
    """

    name = "syntactic"

    def __init__(self, data: Sentences, relations: Sequence[str] = RELATIONS, margin: float = 0.1) -> None:
        self.relations, self.margin = tuple(relations), margin
        self.details = tuple(f"{relation} {way}" for relation in relations for way in DIRECTIONS)
        self.usual = {causal: self._usual(data.sentences, causal) for causal in (False, True)}

    def holds(self, score: float, baseline: float) -> bool:
        return score >= baseline + self.margin

    def count(self, view: View) -> Counted | None:
        if not view.within or not view.of_source or not view.sentence.relations:
            return None
        pieces = pieces_of_words(view.sentence, view.keys)  # (words, T)
        there: np.ndarray = np.asarray(pieces.any(1))  # (words,)
        causal = view.site.kind in CAUSAL
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
        """(detail, looking word, word to look at) of every dependency that counts."""
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


def pieces_of_words(sentence: Sentence, tokens: Tokens) -> np.ndarray:
    """(words, T) which tokens are pieces of which words, by the characters that they share.

    >>> sentence = Sentence("an unlikely one", ((0, 2), (3, 11), (12, 15)))
    >>> spans = np.array([(0, 0), (0, 2), (3, 5), (5, 11), (12, 15)])
    >>> pieces_of_words(sentence, Tokens(np.arange(5), np.arange(5) > 0, spans)).astype(int).tolist()
    [[0, 1, 0, 0, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]]
    """
    assert tokens.spans is not None
    start, end = np.array(sentence.words).T[..., None]  # (words, 1)
    overlap = np.minimum(end, tokens.spans[:, 1]) - np.maximum(start, tokens.spans[:, 0])
    return (overlap > 0) & tokens.is_word


def chosen_relations(data: Sentences, asked: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The relations to look for, and remarks; one that was asked for and never occurs is refused."""
    occurring = data.relations()
    if asked is None:
        missing = [name for name in RELATIONS if name not in occurring]
        remarks = [f"no {name} in the data" for name in missing] if occurring else []
        return [name for name in RELATIONS if name in occurring], remarks
    names = list(dict.fromkeys(universal(name) for name in asked))
    for name in names:
        if name not in occurring:
            if not occurring:
                raise BadData(f"relation {name!r} never occurs: the data has no dependencies; give a CoNLL-U file")
            raise BadData(f"relation {name!r} never occurs in the data; " + unknown("relation", name, occurring))
    return names, []
