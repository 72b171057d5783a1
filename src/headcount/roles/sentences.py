"""Sentences whose words, and what these depend on, are known: the data that roles are looked for in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headcount.errors import BadData
from headcount.tasks.base_task import digest
from headcount.tasks.columns import Column, find_text
from headcount.tasks.data import Rows
from headcount.tasks.tokens import texts_of

# What parsers of other label schemes call the relations of Universal Dependencies.
SAME = {"dobj": "obj", "nsubjpass": "nsubj:pass", "csubjpass": "csubj:pass", "auxpass": "aux:pass"}


@dataclass(frozen=True)
class Sentence:
    """A text, the character spans of its words, and (dependent, head, relation) for words that depend on another.

    >>> Sentence("It works.", ((0, 2), (3, 8), (8, 9)), ((0, 1, "nsubj"),)).place
    'a sentence'
    """

    text: str
    words: tuple[tuple[int, int], ...] = ()
    relations: tuple[tuple[int, int, str], ...] = ()
    place: str = "a sentence"


@dataclass(frozen=True)
class Sentences:
    """What `find_roles` reads, and where it is from."""

    sentences: tuple[Sentence, ...]
    source: str = "sentences"
    remarks: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.sentences)

    @classmethod
    def of(cls, data: Any, *, parser: Any = None, text: Column = None, split: str | None = None) -> Sentences:
        """Read a CoNLL-U file, or raw text in whatever form a task takes it, parsed by spaCy if its model is there.

        >>> Sentences.of([{"text": "It works."}], parser=False).sentences[0].text
        'It works.'

        parser: the name of a spaCy model, or a pipeline; None tries en_core_web_sm, False parses nothing.
        """
        from headcount.roles.parsing import parsed
        from headcount.roles.treebank import read_treebank

        if isinstance(data, Sentences):
            return data
        if isinstance(data, Sequence) and data and isinstance(data[0], Sentence):
            return cls(tuple(data))
        if isinstance(data, (str, Path)) and Path(data).suffix.lower() in (".conllu", ".conll"):
            return cls(tuple(read_treebank(Path(data))), str(data))
        rows = Rows.of(data, split)
        column, _, said = find_text(rows, text, None)
        texts = texts_of(rows, column)
        written = [(texts[i], rows.place(i)) for i in range(len(rows)) if texts[i].strip()]
        if not written:
            raise BadData("there are no sentences: the data is empty")
        sentences, remarks = parsed(written, parser)
        return cls(tuple(sentences), rows.source, (*rows.remarks, *said, *remarks))

    def take(self, limit: int | None, seed: int = 0) -> Sentences:
        """At most so many sentences, chosen at random, in their order."""
        if limit is None or limit >= len(self):
            return self
        chosen = sorted(np.random.default_rng(seed).choice(len(self), limit, replace=False))
        return Sentences(tuple(self.sentences[i] for i in chosen), self.source, self.remarks)

    def relations(self) -> Counter[str]:
        """How often each relation occurs, also under its name without the subtype: nsubj:pass is an nsubj."""
        every: Counter[str] = Counter()
        for sentence in self.sentences:
            for _, _, name in sentence.relations:
                every.update({name, name.partition(":")[0]})
        return every

    def signature(self) -> dict[str, Any]:
        content = [[one.text, one.words, one.relations] for one in self.sentences]
        return {"task": "roles", "data": self.source, "n": len(self), "fingerprint": digest(content)}


def universal(relation: str) -> str:
    """The relation's name in Universal Dependencies.

    >>> universal("dobj"), universal("nsubj")
    ('obj', 'nsubj')
    """
    return SAME.get(relation.lower(), relation.lower())
