"""Treebanks: CoNLL-U files, their words found again in the text of their sentence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headcount.errors import BadData, HeadcountError
from headcount.roles.sentences import Sentence, universal


def read_treebank(path: Path) -> list[Sentence]:
    """The sentences of a CoNLL-U file; one whose words are not those of its text is refused by name.

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
        raise HeadcountError("reading CoNLL-U needs the package conllu: pip install 'headcount[roles]'") from error
    sentences: list[Sentence] = []
    try:
        with path.open(encoding="utf-8-sig") as stream:
            for tokens in conllu.parse_incr(stream):
                sentences.append(_sentence(tokens, f"{path.name}, sentence {len(sentences) + 1}"))
    except OSError as error:
        raise BadData(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadData(f"{path.name}: not UTF-8 text") from error
    except ValueError as error:  # a number of thousands of digits
        raise BadData(f"{path.name}, sentence {len(sentences) + 1}: not CoNLL-U: {error}") from error
    except ParseException as error:
        raise BadData(f"{path.name}, sentence {len(sentences) + 1}: not CoNLL-U: {error}") from error
    if not sentences:
        raise BadData(f"{path.name} has no sentences")
    return sentences


def _sentence(tokens: Any, place: str) -> Sentence:
    name = tokens.metadata.get("sent_id")
    place = f"{place} ({name})" if name else place
    words = [token for token in tokens if isinstance(token["id"], int)]
    if [token["id"] for token in words] != list(range(1, len(words) + 1)):
        raise BadData(f"{place}: its words are not numbered 1, 2, 3, …")
    for id in (token["id"] for token in tokens if isinstance(token["id"], tuple)):
        if id[1] == "-" and not 1 <= id[0] <= id[2] <= len(words):
            raise BadData(f"{place}: the form {id[0]}-{id[2]} stands for words that are not there")
    surface = list(_surface(tokens))  # (written form, the words in it)
    text = tokens.metadata.get("text") or _written(tokens)
    spans: dict[int, tuple[int, int]] = {}
    end = 0
    for form, inside in surface:
        start = _find(text, form, end, place)
        end = start + len(form)
        spans |= _inside(text, start, end, {id: words[id - 1]["form"] for id in inside})
    if len(spans) < len(words):
        raise BadData(f"{place}: a form that stands for several words is not in front of them")
    relations = []
    for token in words:
        head, relation = token.get("head"), token.get("deprel")
        if isinstance(head, int) and not 0 <= head <= len(words):
            raise BadData(f"{place}: {token['form']!r} depends on word {head}, but there are {len(words)} words")
        if head and relation and relation != "_":
            relations.append((token["id"] - 1, head - 1, universal(relation)))
    return Sentence(text, tuple(spans[token["id"]] for token in words), tuple(relations), place)


def _surface(tokens: Any) -> Iterator[tuple[str, list[int]]]:
    """What is written, in order: single words, and those that stand for several ("don't")."""
    covered = 0
    for token in tokens:
        id = token["id"]
        if isinstance(id, int) and id > covered:
            yield token["form"], [id]
        elif isinstance(id, tuple) and id[1] == "-":
            covered = id[2]
            yield token["form"], list(range(id[0], id[2] + 1))


def _written(tokens: Any) -> str:
    """The text of a sentence that has no `# text`: its forms, with spaces where none is said to be missing."""
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
        raise BadData(f"{place}: its words cannot be aligned to its text: {form!r} was expected, {rest!r} is there")
    return start


def _inside(text: str, start: int, end: int, forms: dict[int, str]) -> dict[int, tuple[int, int]]:
    """The spans of the words in one written form; where they are not written out ("du": "de", "le"), all of it."""
    if "".join(forms.values()).lower() != text[start:end].lower():
        return dict.fromkeys(forms, (start, end))
    spans = {}
    for id, form in forms.items():
        spans[id] = (start, start + len(form))
        start += len(form)
    return spans
