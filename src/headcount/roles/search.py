"""`find_roles`: which heads look at a position, at a syntactic relation, at the rarest word, or rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headcount.engine import Arrays, is_finite, over_shards
from headcount.errors import HeadcountError
from headcount.heads import Head
from headcount.roles.attention import TOKENS, Encoded, Reader, encode
from headcount.roles.counts import LEAST, Role, Tally, best
from headcount.roles.measures import Idle, Measure, Positional, Rare, Syntactic, chosen_relations, frequencies
from headcount.roles.sentences import Sentences
from headcount.runs import RunDirectory, model_signature, open_run, versions
from headcount.structure import Anatomy, anatomy


@dataclass(frozen=True)
class Thresholds:
    """When a head has a role: V19's numbers, and for rare words and idle heads, where V19 has none, one half.

    positional: share of tokens whose strongest weight is at one relative position.
    syntactic: by how much the score beats the most frequent relative position.
    rare: share of tokens whose strongest weight is at the rarest token.
    idle: mean weight on the first token, or on the separators.
    frequent: sentences whose rarest token is among the so many most frequent do not count for rare words.
    """

    positional: float = 0.9
    syntactic: float = 0.1
    rare: float = 0.5
    idle: float = 0.5
    frequent: int = 500

    def __post_init__(self) -> None:
        for name in ("positional", "syntactic", "rare", "idle"):
            if not 0 <= getattr(self, name) <= 1:
                raise HeadcountError(f"threshold {name}={getattr(self, name)}: a share from 0 to 1 is expected")
        if self.frequent < 0:
            raise HeadcountError(f"frequent={self.frequent}: a number of tokens, 0 or more, is expected")


@dataclass(frozen=True)
class Roles:
    """The roles that were found, in the order of the heads, and the best head of every role and detail."""

    found: tuple[Role, ...]
    best: tuple[Role, ...]
    remarks: tuple[str, ...] = ()
    signature: dict[str, Any] = field(default_factory=dict)

    def of(self, head: Head | str) -> list[Role]:
        """What a head does."""
        name = head if isinstance(head, Head) else Head.parse(head)
        return [role for role in self.found if role.head == name]

    def to_json(self) -> dict[str, Any]:
        return {
            "heads": [role.to_json() for role in self.found],
            "best": [role.to_json() for role in self.best],
            "remarks": list(self.remarks),
            "signature": self.signature,
        }


def find_roles(
    model: Any,
    data: Any,
    tokenizer: Any,
    *,
    relations: Sequence[str] | None = None,
    thresholds: Thresholds | None = None,
    parser: Any = None,
    max_length: int | None = None,
    run: str | Path | RunDirectory | None = None,
    progress: Callable[[float], None] | None = None,
) -> Roles:
    """Find positional, syntactic and rare-word heads as V19 (section 5) defines them, and idle heads.

    >>> from transformers import BertConfig, BertModel
    >>> from headcount.tasks.toy import word_tokenizer
    >>> config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=20, pad_token_id=0)
    >>> rows = [{"text": "a fine film"}, {"text": "a dull film"}]
    >>> roles = find_roles(BertModel(config), rows, word_tokenizer("a fine dull film"), parser=False)
    >>> len(roles.found)  # a random model has none
    0

    data: a CoNLL-U file with gold dependencies, or raw text in whatever form a task takes it, parsed by spaCy.
    tokenizer: a fast one, whose offsets join pieces to words.
    relations: of Universal Dependencies; by default V19's nsubj, obj, amod and advmod.
    parser: the name of a spaCy model, or a pipeline; False: no syntactic heads.
    run: a run directory, in which finished shards of the data are kept and found again.
    progress: called with the share done, from 0 to 1.
    """
    sentences = Sentences.of(data, parser=parser)
    limits = thresholds or Thresholds()
    names, remarks = chosen_relations(sentences, relations)
    reader = Reader(model, tokenizer)
    encoded, cut = encode(model, tokenizer, sentences.sentences, max_length)
    counts = frequencies(one.ids[one.is_word] for one in encoded.tokens)
    measures: list[Measure] = [Positional(limits.positional), Idle(limits.idle)]
    measures.append(Rare(counts, limits.rare, limits.frequent))
    if names:
        measures.append(Syntactic(sentences, names, limits.syntactic))
    signature = {
        "model": model_signature(model),
        "task": sentences.signature(),
        "relations": names,
        "thresholds": vars(limits),
        "max_length": max_length,
        "least_cases": LEAST,
        "versions": versions(),
    }
    with open_run(run, signature) as directory:
        work = Looking(tokenizer, tuple(measures))
        arrays = over_shards(work, model, encoded, directory=directory, name="roles", progress=progress)
    every = [tally.read(arrays) for tally in work.tallies(reader, 0)]
    if not any(tally.cases.sum() for tally in every if tally.measure.name == "rare"):
        remarks.append(
            f"no sentence has a token beyond the {limits.frequent} most frequent: rare-word heads cannot be told"
        )
    return Roles(
        found=_in_order(anatomy(model), [role for tally in every for role in tally.found()]),
        best=tuple(best(every)),
        remarks=(*sentences.remarks, *reader.remarks, *cut, *remarks),
        signature=signature,
    )


@dataclass(frozen=True)
class Looking:
    """Counting as work for an engine: what every measure has counted in each sentence at every site."""

    tokenizer: Any
    measures: tuple[Measure, ...]
    tokens: int = TOKENS

    def summed(self, name: str) -> bool:
        return False

    def fits(self, arrays: Arrays, count: int) -> bool:
        return bool(arrays) and all(one.shape[:1] == (count,) and is_finite(one) for one in arrays.values())

    def tallies(self, reader: Reader, sentences: int) -> list[Tally]:
        """Empty ones."""
        return [Tally(measure, site, sentences) for measure in self.measures for site in reader.sites]

    def __call__(self, model: Any, examples: Encoded, progress: Callable[[float], None] | None = None) -> Arrays:
        reader = Reader(model, self.tokenizer)
        tallies = {(tally.measure.name, tally.site.name): tally for tally in self.tallies(reader, len(examples))}
        for index, view in reader.views(examples, progress):
            for measure in self.measures:
                counted = measure.count(view)
                if counted is not None:
                    tallies[measure.name, view.site.name].add(index, counted)
        return {name: array for tally in tallies.values() for name, array in tally.arrays().items()}


def _in_order(found: Anatomy, roles: list[Role]) -> tuple[Role, ...]:
    return tuple(sorted(roles, key=lambda role: (found.index(role.head), role.role, role.detail)))
