"""Raw text to sentences with dependencies, by spaCy where a model of it is installed."""

from __future__ import annotations

from typing import Any

from headcount.errors import HeadcountError
from headcount.roles.sentences import Sentence, universal

DEFAULT = "en_core_web_sm"


def parsed(texts: list[tuple[str, str]], parser: Any = None) -> tuple[list[Sentence], list[str]]:
    """Sentences of texts (text, place), with remarks; unparsed if no parser was asked for and none is there."""
    pipeline, remark = _pipeline(parser)
    if pipeline is None:
        return [Sentence(text, place=place) for text, place in texts], [remark] if remark else []
    sentences = []
    for (_, place), document in zip(texts, pipeline.pipe([text for text, _ in texts]), strict=True):
        if not document.has_annotation("DEP"):
            raise HeadcountError("the spaCy pipeline finds no dependencies; use one with a parser, such as " + DEFAULT)
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
    """A spaCy pipeline, or None, and what the user should be told."""
    if parser is False:
        return None, ""
    if parser is not None and not isinstance(parser, str):
        return parser, ""
    name = parser or DEFAULT
    try:
        import spacy

        return spacy.load(name), f"parsed by spaCy's {name}"
    except (ImportError, OSError) as error:
        reason = "spaCy is not installed" if isinstance(error, ImportError) else f"spaCy has no model {name!r} here"
        if parser is not None:
            raise HeadcountError(f"{reason}; install it, or give a CoNLL-U file") from error
        return None, f"{reason}: syntactic heads are not looked for (a CoNLL-U file has dependencies of its own)"
