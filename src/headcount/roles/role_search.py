"""`find_roles`: what heads do in sentences, in recordings that are transcribed, and in a language model.

Every role is counted in each sentence at each site (`CountRoles`, work for an engine). Added up, the counts give scores
with bootstrap intervals over sentences (`RoleCounts`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headcount.engine import Arrays, Progress, is_finite, over_shards
from headcount.errors import counted
from headcount.heads import Head
from headcount.reporting import Shown
from headcount.roles.attention import TOKENS, AttentionReader, SpeechReader, encode
from headcount.roles.language_roles import (
    CopiedTokens,
    Copying,
    DuplicateToken,
    Induction,
    PreviousToken,
    Retrieval,
    Sink,
    Streaming,
    cache_plan,
    make_probes,
    refuse_non_decoder,
)
from headcount.roles.sentence_roles import (
    Alignment,
    Counted,
    Idle,
    Measure,
    Positional,
    Rare,
    Syntactic,
    Thresholds,
    WordAlignment,
    chosen_relations,
    token_counts,
)
from headcount.roles.sentences import Sentences
from headcount.runs import RunDirectory, model_signature, open_run, versions
from headcount.stats import interval
from headcount.structure import AttentionSite, anatomy
from headcount.tasks import ACCURACY, SpeechRecognition, digest, refuse_non_tokenizer

LEAST = 10  # cases; with fewer, a head gets no score


def find_roles(
    model: Any,
    data: Any = None,
    tokenizer: Any = None,
    *,
    relations: Sequence[str] | None = None,
    thresholds: Thresholds | None = None,
    parser: Any = None,
    frequencies: Any = None,
    max_length: int | None = None,
    seed: int = 0,
    run: str | Path | RunDirectory | None = None,
    progress: Progress | None = None,
) -> Roles:
    """Find what heads do: in sentences as V19 (section 5) defines it, or in a language model on random tokens.

    >>> from headcount.tasks.classification import toy_classifier
    >>> model, task = toy_classifier()
    >>> rows = [{"text": "a fine film"}, {"text": "a dull film"}]
    >>> len(find_roles(model, rows, task.tokenizer, parser=False).found)  # a random model has none
    0

    data: a CoNLL-U file with gold dependencies, or raw text in any form that a task reads, parsed by spaCy.
        For a translator also rows with a source, a target and an `alignment` of their words, `0-0 1-2`; for Whisper
        recordings with transcripts. None: a decoder is searched for induction heads and the like.
    tokenizer: a fast one, whose offsets join pieces to words; for Whisper its processor.
    relations: of Universal Dependencies; by default V19's nsubj, obj, amod and advmod.
    parser: the name of a spaCy model, or a pipeline; False: no syntactic heads.
    frequencies: texts in which to count how frequent tokens are, such as the training data; by default `data`.
    max_length: of sentences, in tokens; without data, of the longest random context (512).
    seed: of the random tokens.
    run: a run directory, which keeps finished shards and resumes from them.
    progress: called with the share done, from 0 to 1.
    """
    refuse_non_tokenizer(tokenizer)
    limits = thresholds or Thresholds()
    if data is None:
        study = _on_random_tokens(model, tokenizer, limits, seed, max_length)
    elif model.main_input_name == "input_features" and hasattr(tokenizer, "feature_extractor"):
        study = _on_recordings(model, tokenizer, limits, data)
    else:
        sentences = Sentences.of(data, parser=parser)
        counted_in = None if frequencies is None else Sentences.of(frequencies, parser=False)
        study = _on_sentences(model, tokenizer, limits, sentences, relations, counted_in, max_length)
    reader, measures = study.work.reads(model, tokenizer), {measure.name: measure for measure in study.work.measures}
    signature = {
        "model": model_signature(model),
        **study.about,
        "thresholds": vars(limits),
        "max_length": max_length,
        "least_cases": LEAST,
        "versions": versions(),
    }
    with open_run(run, signature) as directory:
        arrays = over_shards(study.work, model, study.examples, directory=directory, name="roles", progress=progress)
        if Copying.name in measures:
            repeated = [i for i, probe in enumerate(study.examples.sentences) if probe.period]
            arrays |= over_shards(
                CopiedTokens(), model, study.examples.subset(repeated), directory=directory, name="copying"
            )
    every = [counts.read(arrays) for counts in study.work.empty_counts(reader, 0)]
    remarks = [*study.remarks, *reader.remarks]
    if "rare" in measures and not any(counts.cases.sum() for counts in every if counts.measure.name == "rare"):
        remarks.append(
            f"no sentence has a token beyond the {limits.frequent} most frequent, so rare-word heads cannot be found"
        )
    found, place, names = [role for counts in every for role in counts.found()], anatomy(model).index, list(measures)
    streaming = {
        head: float(score)
        for counts in every
        if counts.measure.name == Streaming.name
        for head, score in zip(counts.site.heads, counts.scores()[0][:, 0], strict=True)
    }
    return Roles(
        found=tuple(sorted(found, key=lambda role: (place(role.head), names.index(role.role), role.detail))),
        best=tuple(best(every)),
        remarks=tuple(remarks),
        signature=signature,
        papers={name: measure.paper for name, measure in measures.items()},
        cache=cache_plan(reader.sites, streaming, limits.streaming) if streaming else {},
    )


@dataclass(frozen=True)
class Study:
    """What heads are searched for, on which examples; `about` is what the signature says of it."""

    work: CountRoles
    examples: Any  # EncodedSentences or SpeechRecognition
    about: dict[str, Any]
    remarks: tuple[str, ...] = ()


def _on_sentences(
    model: Any,
    tokenizer: Any,
    limits: Thresholds,
    sentences: Sentences,
    relations: Sequence[str] | None,
    counted_in: Sentences | None,
    max_length: int | None,
) -> Study:
    names, on_relations = chosen_relations(sentences, relations)
    encoded, on_length = encode(model, tokenizer, sentences.sentences, max_length)
    texts = encoded if counted_in is None else encode(model, tokenizer, counted_in.sentences, max_length)[0]
    counts = token_counts(one.ids[one.is_word] for one in texts.tokens)
    measures: list[Measure] = [Positional(limits.positional), Idle(limits.idle)]
    measures.append(Rare(counts, limits.rare, limits.frequent))
    if encoded.targets is not None:
        measures.append(WordAlignment(limits.alignment))
    if names:
        measures.append(Syntactic(sentences, names, limits.syntactic))
    counted = None if counted_in is None else counted_in.signature()
    about = {"task": sentences.signature(), "relations": names, "frequencies": counted}
    remarks = (*sentences.remarks, *on_length, *on_relations)
    return Study(CountRoles(tokenizer, tuple(measures)), encoded, about, remarks)


def _on_recordings(model: Any, processor: Any, limits: Thresholds, data: Any) -> Study:
    task = data if isinstance(data, SpeechRecognition) else SpeechRecognition(data, processor)
    remarks = (
        *task.check(model),
        "the time of each token is estimated by letters; aligning heads are searched for in cross-attention",
    )
    work = CountRoles(processor, (Alignment(limits.alignment),), reads=SpeechReader)
    return Study(work, task, {"task": task.signature()}, remarks)


def _on_random_tokens(model: Any, tokenizer: Any, limits: Thresholds, seed: int, max_length: int | None) -> Study:
    refuse_non_decoder(model)
    probes = make_probes(model, tokenizer, seed, max_length)
    measures: list[Measure] = [
        Induction(limits.induction),
        PreviousToken(limits.previous),
        DuplicateToken(limits.duplicate),
        Retrieval(limits.retrieval),
        Copying(limits.copying),
        Sink(limits.sink),
        Streaming(limits.streaming),
    ]
    remarks = []
    if model.get_output_embeddings() is None:
        remarks.append(f"{type(model).__name__} has no output embeddings, so copying heads cannot be found")
        measures = [measure for measure in measures if measure.name != Copying.name]
    about = {"task": {"task": "random tokens", "n": len(probes), "fingerprint": digest(probes.ids())}, "seed": seed}
    return Study(CountRoles(tokenizer, tuple(measures)), probes, about, tuple(remarks))


@dataclass(frozen=True)
class Roles(Shown):
    """The roles that were found, in the order of the heads, and the best head of every role and detail.

    papers: where each role that was searched for is from. cache: which key-value heads need a whole cache (of a
    language model; see `cache_plan`).
    """

    found: tuple[Role, ...]
    best: tuple[Role, ...]
    remarks: tuple[str, ...] = ()
    signature: dict[str, Any] = field(default_factory=dict)
    papers: dict[str, str] = field(default_factory=dict)
    cache: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        heads = len({role.head for role in self.found})
        return f"<{counted(len(self.found), 'role')} of {counted(heads, 'head')}>"

    def of(self, head: Head | str) -> list[Role]:
        """The roles of one head."""
        name = head if isinstance(head, Head) else Head.parse(head)
        return [role for role in self.found if role.head == name]

    def to_json(self) -> dict[str, Any]:
        """What `headcount roles --json` prints, without the model."""
        return {
            "heads": [role.to_json() for role in self.found],
            "best": [role.to_json() for role in self.best],
            "remarks": list(self.remarks),
            "papers": self.papers,
            **({"cache": self.cache} if self.cache else {}),
            "signature": self.signature,
        }


@dataclass(frozen=True)
class Role:
    """A head in a role: its score, the baseline's, and the score's 95% bootstrap interval over sentences.

    >>> Role(Head.parse("encoder.2.7"), "positional", "-1", 0.97, 0.08, 0.96, 0.98, 950).to_json()["detail"]
    '-1'
    """

    head: Head
    role: str
    detail: str
    score: float
    baseline: float
    low: float
    high: float
    cases: int

    def to_json(self) -> dict[str, Any]:
        """One of the `heads` that `headcount roles --json` prints."""
        return {**vars(self), "head": str(self.head)}


@dataclass(frozen=True)
class CountRoles:
    """Counting as work for an engine: what every measure counts in each sentence at every site."""

    tokenizer: Any
    measures: tuple[Measure, ...]
    tokens: int = TOKENS
    reads: Any = AttentionReader  # or SpeechReader

    def summed(self, name: str) -> bool:
        return False

    def fits(self, arrays: Arrays, count: int) -> bool:
        return bool(arrays) and all(one.shape[:1] == (count,) and is_finite(one) for one in arrays.values())

    def empty_counts(self, reader: Any, sentences: int) -> list[RoleCounts]:
        return [RoleCounts(measure, site, sentences) for measure in self.measures for site in reader.sites]

    def __call__(self, model: Any, examples: Any, progress: Progress | None = None) -> Arrays:
        reader = self.reads(model, self.tokenizer)
        empty = self.empty_counts(reader, len(examples))
        every = {(counts.measure.name, counts.site.name): counts for counts in empty}
        for index, view in reader.views(examples, progress):
            for measure in self.measures:
                counted = measure.count(view)
                if counted is not None:
                    every[measure.name, view.site.name].add(index, counted)
        return {name: array for counts in every.values() for name, array in counts.arrays().items()}


class RoleCounts:
    """What a measure has counted at one site, by sentence."""

    COUNTS = ("hits", "cases", "baseline")

    def __init__(self, measure: Measure, site: AttentionSite, sentences: int) -> None:
        self.measure, self.site = measure, site
        self.hits = np.zeros((sentences, len(site.kept), len(measure.details)), np.float32)
        self.cases = np.zeros((sentences, len(measure.details)), np.float32)
        self.baseline = np.zeros((sentences, len(measure.details)), np.float32)

    def arrays(self) -> dict[str, np.ndarray]:
        """The counts, under names that no other measure or site has."""
        return {f"{self.measure.name} {self.site.name} {name}": getattr(self, name) for name in self.COUNTS}

    def read(self, arrays: Mapping[str, np.ndarray]) -> RoleCounts:
        """Take over the counts that `arrays` returned."""
        for name in self.COUNTS:
            setattr(self, name, arrays[f"{self.measure.name} {self.site.name} {name}"])
        return self

    def add(self, sentence: int, counted: Counted) -> None:
        self.hits[sentence] += counted.hits
        self.cases[sentence] += counted.cases
        self.baseline[sentence] += counted.baseline

    def scores(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores (heads, details) and baselines (details,); nan if there are too few cases."""
        cases = self.cases.sum(0, dtype=np.float64)
        cases = np.where(cases >= LEAST, cases, np.nan)
        return self.hits.sum(0, dtype=np.float64) / cases, self.baseline.sum(0, dtype=np.float64) / cases

    def found(self) -> list[Role]:
        """The heads that have the role."""
        scores, baselines = self.scores()
        return [
            self.role(head, detail)
            for head in range(scores.shape[0])
            for detail in range(scores.shape[1])
            if np.isfinite(scores[head, detail])
            and self.measure.holds(scores[head, detail], baselines[detail], self.measure.details[detail])
        ]

    def role(self, head: int, detail: int) -> Role:
        """One head's score in one detail of the role, whether it has the role or not."""
        scores, baselines = self.scores()
        counted = np.stack([self.cases[:, detail], self.hits[:, head, detail]], axis=1)  # (N, 2)
        low, high = interval(counted[counted[:, 0] > 0], ACCURACY)
        return Role(
            self.site.heads[head],
            self.measure.name,
            self.measure.details[detail],
            float(scores[head, detail]),
            float(baselines[detail]),
            low,
            high,
            int(counted[:, 0].sum()),
        )


def best(every: list[RoleCounts]) -> list[Role]:
    """The head with the highest score, for each role, attention kind and detail."""
    places: dict[tuple[str, str, int], list[tuple[float, RoleCounts, int]]] = {}
    for counts in every:
        scores, _ = counts.scores()
        for head, detail in np.argwhere(np.isfinite(scores)):
            key = (counts.measure.name, counts.site.kind, int(detail))
            places.setdefault(key, []).append((float(scores[head, detail]), counts, int(head)))
    winners = {key: max(candidates, key=lambda one: one[0]) for key, candidates in places.items()}
    return [counts.role(head, key[2]) for key, (_, counts, head) in winners.items()]
