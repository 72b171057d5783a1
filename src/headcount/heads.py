"""`Head`: the one address of a head, in Python, on the command line, in JSON and in reports."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from headcount.errors import HeadcountError

_PATTERN = re.compile(r"([a-z][a-z_]*)\.([0-9]{1,6})\.([0-9]{1,6})")


@dataclass(frozen=True, order=True, slots=True)
class Head:
    """Kind, layer and index, counted from 0; written `encoder.3.5`.

    A head keeps its address when others are removed: `encoder.3.5` means the same head forever.

    >>> Head("encoder", 3, 5)
    Head.parse('encoder.3.5')
    >>> Head.parse("cross.0.7").layer
    0
    """

    kind: str
    layer: int
    index: int

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read `kind.layer.index`."""
        match = _PATTERN.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise HeadcountError(
                f"{text!r} is not a head", advice="write kind.layer.index, counted from 0, for example encoder.3.5"
            )
        return cls(match[1], int(match[2]), int(match[3]))

    @property
    def site(self) -> str:
        """The site that the head belongs to, for example `encoder.3`."""
        return f"{self.kind}.{self.layer}"

    def __str__(self) -> str:
        return f"{self.kind}.{self.layer}.{self.index}"

    def __repr__(self) -> str:
        return f"Head.parse({str(self)!r})"


def parse_heads(heads: Iterable[Head | str] | Head | str) -> tuple[Head, ...]:
    """Read heads from a comma-separated text, an iterable or one head; the same head twice is refused.

    >>> [str(head) for head in parse_heads("encoder.3.5, encoder.0.1")]
    ['encoder.3.5', 'encoder.0.1']
    """
    if not isinstance(heads, (Iterable, Head)):
        raise HeadcountError(
            f"{heads!r} is not a list of heads", advice="write ['encoder.3.5'] or 'encoder.3.5,cross.0.7'"
        )
    items = [part for part in heads.split(",") if part.strip()] if isinstance(heads, str) else heads
    items = [items] if isinstance(items, Head) else items
    parsed = tuple(item if isinstance(item, Head) else Head.parse(item) for item in items)
    seen: set[Head] = set()
    for head in parsed:
        if head in seen:
            raise HeadcountError(f"head {head} is named twice", advice="name each head once")
        seen.add(head)
    return parsed
