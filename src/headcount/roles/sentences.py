"""Sentences with their words and dependencies, from a CoNLL-U treebank or parsed by spaCy: the data for roles."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headcount.errors import BadData, HeadcountError
from headcount.tasks import Column, Rows, digest, find_text, find_translation, texts_of

ALIGNMENT = "alignment"  # the column of links between words
LINK = re.compile(r"([0-9]{1,6})[-p?]([0-9]{1,6})")
PARSER = "en_core_web_sm"  # spaCy's, unless another is named
# Other label schemes' names for relations of Universal Dependencies.
SAME = {"dobj": "obj", "nsubjpass": "nsubj:pass", "csubjpass": "csubj:pass", "auxpass": "aux:pass"}


@dataclass(frozen=True)
class Sentence:
    """A text, the character spans of its words, and its dependencies as (dependent, head, relation).

    >>> Sentence("It works.", ((0, 2), (3, 8), (8, 9)), ((0, 1, "nsubj"),)).place
    'a sentence'
    """

    text: str
    words: tuple[tuple[int, int], ...] = ()
    relations: tuple[tuple[int, int, str], ...] = ()
    place: str = "a sentence"


@dataclass(frozen=True)
class Aligned(Sentence):
    """A text with its translation, and links between their words as (word, word of the translation)."""

    target: str = ""
    target_words: tuple[tuple[int, int], ...] = ()
    links: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Tokens:
    """What one side of a site reads: ids (T,), which of them are pieces of words, and their places in the text.

    spans: (T, 2) from which character to which; None for text that the model generated.
    is_source: whether it is the sentence itself, not its translation.
    """

    ids: np.ndarray
    is_word: np.ndarray
    spans: np.ndarray | None = None
    is_source: bool = True

    def after(self, start: Tokens) -> Tokens:
        """What a decoder reads of a target that ends with an end token: a start, and all but the end."""
        ids, is_word, spans = (
            np.concatenate([getattr(start, name), getattr(self, name)[:-1]]) for name in ("ids", "is_word", "spans")
        )
        return Tokens(ids, is_word, spans, is_source=False)


@dataclass(frozen=True)
class Sentences:
    """What `find_roles` reads, with the name of its source."""

    sentences: tuple[Sentence, ...]
    source: str = "sentences"
    remarks: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.sentences)

    @classmethod
    def of(cls, data: Any, *, parser: Any = None, text: Column = None, split: str | None = None) -> Sentences:
        """Read a CoNLL-U file, or raw text in any form that a task reads, parsed by spaCy if its model is installed.

        Rows with a column `alignment` beside a source and a target are pairs whose words are aligned (see `aligned`).

        >>> Sentences.of([{"text": "It works."}], parser=False).sentences[0].text
        'It works.'

        parser: the name of a spaCy model, or a pipeline; None tries en_core_web_sm, False parses nothing.
        """
        if isinstance(data, Sentences):
            return data
        if isinstance(data, Sequence) and data and isinstance(data[0], Sentence):
            return cls(tuple(data))
        if isinstance(data, (str, Path)) and Path(data).suffix.lower() in (".conllu", ".conll"):
            return cls(tuple(read_treebank(Path(data))), str(data))
        rows = Rows.of(data, split)
        if ALIGNMENT in rows.names:
            return aligned(rows)
        column, _, on_column = find_text(rows, text, None)
        texts = texts_of(rows, column)
        written = [(texts[i], rows.place(i)) for i in range(len(rows)) if texts[i].strip()]
        if not written:
            raise BadData(f"{rows.source} has no sentences")
        sentences, on_parser = parsed(written, parser)
        return cls(tuple(sentences), rows.source, (*rows.remarks, *on_column, *on_parser))

    def take(self, limit: int | None, seed: int = 0) -> Sentences:
        """A random sample of `limit` sentences, in their order."""
        if limit is None or limit >= len(self):
            return self
        chosen = sorted(np.random.default_rng(seed).choice(len(self), limit, replace=False))
        return Sentences(tuple(self.sentences[i] for i in chosen), self.source, self.remarks)

    def relations(self) -> Counter[str]:
        """How often each relation occurs; a subtype counts for its relation too: nsubj:pass is an nsubj."""
        every: Counter[str] = Counter()
        for sentence in self.sentences:
            for _, _, name in sentence.relations:
                every.update({name, name.partition(":")[0]})
        return every

    def signature(self) -> dict[str, Any]:
        content: list[Any] = [[one.text, one.words, one.relations] for one in self.sentences]
        content += [[one.target, one.links] for one in self.sentences if isinstance(one, Aligned)]
        return {"task": "roles", "data": self.source, "n": len(self), "fingerprint": digest(content)}


def aligned(rows: Rows) -> Sentences:
    """Pairs of texts whose words, between blanks, are aligned: `0-0 1-2` links word 0 to 0 and word 1 to 2.

    >>> pairs = aligned(Rows({"source": ["a red hat"], "target": ["un chapeau rouge"], "alignment": ["0-0 1-2 2p1"]}))
    >>> pairs.sentences[0].links
    ((0, 0), (1, 2), (2, 1))

    This is the form of the shared tasks on word alignment and of aligners such as fast_align; the possible links of
    the former, `2p1` or `2?1`, count as the sure ones do.
    """
    plain = Rows({name: rows.table[name] for name in rows.names if name != ALIGNMENT}, rows.source)
    source, target, remarks = find_translation(plain, None, None)
    columns = (texts_of(rows, name) for name in (source, target, ALIGNMENT))
    pairs = []
    for place, (text, other, links) in enumerate(zip(*columns, strict=True)):
        words, others = (tuple(match.span() for match in re.finditer(r"\S+", one)) for one in (text, other))
        where, found = rows.place(place, ALIGNMENT), []
        for link in links.split():
            match = LINK.fullmatch(link)
            if match is None:
                raise BadData(f"{where}: {link!r} is not a link between two words, such as 0-2")
            pair = int(match[1]), int(match[2])
            for side, one, number in (("source", words, pair[0]), ("target", others, pair[1])):
                if number >= len(one):
                    raise BadData(
                        f"{where}: {link} names {side} word {number}, the last of {len(one)} is {len(one) - 1}"
                    )
            found.append(pair)
        if words and others:
            pairs.append(Aligned(text, words, (), rows.place(place), other, others, tuple(found)))
    if not any(pair.links for pair in pairs):
        raise BadData(f"{rows.source} has no aligned words")
    return Sentences(tuple(pairs), rows.source, (*rows.remarks, *remarks))


def universal(relation: str) -> str:
    """The relation's name in Universal Dependencies.

    >>> universal("dobj"), universal("nsubj")
    ('obj', 'nsubj')
    """
    return SAME.get(relation.lower(), relation.lower())


def parsed(texts: list[tuple[str, str]], parser: Any = None) -> tuple[list[Sentence], list[str]]:
    """Sentences of texts (text, place), and remarks; unparsed if no parser was named and none is installed."""
    pipeline, remark = _pipeline(parser)
    if pipeline is None:
        return [Sentence(text, place=place) for text, place in texts], [remark] if remark else []
    sentences = []
    for (_, place), document in zip(texts, pipeline.pipe([text for text, _ in texts]), strict=True):
        if not document.has_annotation("DEP"):
            raise HeadcountError(
                "the spaCy pipeline has no dependency parser", advice=f"pass another {{parser}}, such as {PARSER}"
            )
        sentences += [_sentence(document, span, place) for span in document.sents]
    return sentences, [remark] if remark else []


def _sentence(document: Any, span: Any, place: str) -> Sentence:
    words = [token for token in span if not token.is_space]
    index = {token.i: position for position, token in enumerate(words)}
    start = words[0].idx if words else span.start_char
    spans = tuple((token.idx - start, token.idx - start + len(token.text)) for token in words)
    relations = tuple(
        (index[token.i], index[token.head.i], universal(token.dep_))
        for token in words
        if token.head.i != token.i and token.head.i in index
    )
    text = document.text[start : start + spans[-1][1]] if spans else span.text
    return Sentence(text, spans, relations, place)


def _pipeline(parser: Any) -> tuple[Any, str]:
    """A spaCy pipeline, or None, and a remark."""
    if parser is False:
        return None, ""
    if parser is not None and not isinstance(parser, str):
        return parser, ""
    name = parser or PARSER
    try:
        import spacy

        return spacy.load(name), f"parsed by spaCy's {name}"
    except (ImportError, OSError) as error:
        reason = "spaCy is not installed" if isinstance(error, ImportError) else f"spaCy has no model {name!r} here"
        if parser is not None:
            raise HeadcountError(reason, advice="install it, or pass a CoNLL-U file as {data}") from error
        return None, f"{reason}: syntactic heads are left out (a CoNLL-U file has its own dependencies)"


def read_treebank(path: Path) -> list[Sentence]:
    """The sentences of a CoNLL-U file; one whose words do not match its text is refused by name.

    >>> import tempfile
    >>> words = ["1 It _ _ _ _ 2 nsubj _ _", "2 works _ _ _ _ 0 root _ SpaceAfter=No", "3 . _ _ _ _ 2 punct _ _"]
    >>> lines = ["# text = It works.", *(word.replace(" ", "\\t") for word in words)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "one.conllu"
    ...     _ = file.write_text("\\n".join([*lines, "", ""]))
    ...     read_treebank(file)[0].relations
    ((0, 1, 'nsubj'), (2, 1, 'punct'))
    """
    try:
        import conllu
        from conllu.exceptions import ParseException
    except ImportError as error:
        raise HeadcountError("reading CoNLL-U requires the package conllu: pip install 'headcount[roles]'") from error
    sentences: list[Sentence] = []
    try:
        with path.open(encoding="utf-8-sig") as stream:
            for tokens in conllu.parse_incr(stream):
                sentences.append(_treebank_sentence(tokens, f"{path.name}, sentence {len(sentences) + 1}"))
    except OSError as error:
        raise BadData(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadData(f"{path.name}: the text is not UTF-8") from error
    except (ParseException, ValueError) as error:  # ValueError: a number of thousands of digits
        raise BadData(f"{path.name}, sentence {len(sentences) + 1}: not CoNLL-U: {error}") from error
    if not sentences:
        raise BadData(f"{path.name} has no sentences")
    return sentences


def _treebank_sentence(tokens: Any, place: str) -> Sentence:
    name = tokens.metadata.get("sent_id")
    place = f"{place} ({name})" if name else place
    words = [token for token in tokens if isinstance(token["id"], int)]
    if [token["id"] for token in words] != list(range(1, len(words) + 1)):
        raise BadData(f"{place}: the words are not numbered 1, 2, 3, …")
    for id in (token["id"] for token in tokens if isinstance(token["id"], tuple)):
        if id[1] == "-" and not 1 <= id[0] <= id[2] <= len(words):
            raise BadData(f"{place}: the form {id[0]}-{id[2]} covers words beyond the {len(words)} of the sentence")
    surface = list(_surface(tokens))  # (written form, the words in it)
    text = tokens.metadata.get("text") or _written(tokens)
    spans: dict[int, tuple[int, int]] = {}
    end = 0
    for form, inside in surface:
        start = _find(text, form, end, place)
        end = start + len(form)
        spans |= _inside(text, start, end, {id: words[id - 1]["form"] for id in inside})
    if len(spans) < len(words):
        raise BadData(f"{place}: a form that covers several words must come before them")
    relations = []
    for token in words:
        head, relation = token.get("head"), token.get("deprel")
        if isinstance(head, int) and not 0 <= head <= len(words):
            raise BadData(f"{place}: {token['form']!r} depends on word {head}, but the sentence has {len(words)}")
        if head and relation and relation != "_":
            relations.append((token["id"] - 1, head - 1, universal(relation)))
    return Sentence(text, tuple(spans[token["id"]] for token in words), tuple(relations), place)


def _surface(tokens: Any) -> Iterator[tuple[str, list[int]]]:
    """The written forms in order, with their words: single words, and forms that cover several ("don't")."""
    covered = 0
    for token in tokens:
        id = token["id"]
        if isinstance(id, int) and id > covered:
            yield token["form"], [id]
        elif isinstance(id, tuple) and id[1] == "-":
            covered = id[2]
            yield token["form"], list(range(id[0], id[2] + 1))


def _written(tokens: Any) -> str:
    """The text of a sentence without `# text`: its forms, with a space after each but for SpaceAfter=No."""
    spaced = {token["id"][0] if isinstance(token["id"], tuple) else token["id"]: token for token in tokens}
    forms = []
    for form, inside in _surface(tokens):
        misc = spaced[inside[0]].get("misc") or {}
        forms.append(form if misc.get("SpaceAfter") == "No" else f"{form} ")
    return "".join(forms).rstrip()


def _find(text: str, form: str, start: int, place: str) -> int:
    while start < len(text) and text[start].isspace() and not text.startswith(form, start):
        start += 1
    if not text.startswith(form, start):
        rest = text[start : start + 20]
        raise BadData(f"{place}: the words do not match the text: expected {form!r}, found {rest!r}")
    return start


def _inside(text: str, start: int, end: int, forms: dict[int, str]) -> dict[int, tuple[int, int]]:
    """The spans of the words in one written form; all of it if they are not spelled out ("du": "de", "le")."""
    if "".join(forms.values()).lower() != text[start:end].lower():
        return dict.fromkeys(forms, (start, end))
    spans = {}
    for id, form in forms.items():
        spans[id] = (start, start + len(form))
        start += len(form)
    return spans
