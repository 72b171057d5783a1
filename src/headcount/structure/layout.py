"""`Layout`: what is left of a site, as its module remembers it and as `config.json` records it.

The record is `config.headcount = {"version": 1, "sites": {"encoder.3": entry, …}}`. An entry has `kept`, the heads left
by their original index; `of`, how many there were; `group`, how many query heads shared one key-value head; and, in a
stock checkpoint, `built`: the heads of a model that transformers builds from this configuration. Neurons, of which a
site has thousands, are written as ranges: `"kept": "0-511, 600"`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from headcount.heads import FEED_FORWARD, format_ranges, parse_ranges

VERSION = 1
MOST = 100_000  # heads or neurons of one site; real models have fewer


@dataclass(frozen=True)
class Layout:
    """Which heads of a site are left, by original index, in the order of their weights.

    >>> layout = Layout.whole("decoder", 8, group=2).keeping([0, 1, 4])
    >>> layout.kv_kept, layout.kv_index, layout.is_even
    ((0, 2), (0, 0, 1), False)
    >>> layout.entry()
    {'kept': [0, 1, 4], 'of': 8, 'group': 2}

    kind: of the site. original: how many heads it was trained with. group: how many query heads shared one key-value
        head then. built: the heads that it has when transformers builds it from the model's configuration.
    """

    kind: str
    kept: tuple[int, ...]
    original: int
    group: int
    built: tuple[int, ...]
    kv_kept: tuple[int, ...] = field(init=False, repr=False)  # the key-value heads left, by original index
    kv_index: tuple[int, ...] = field(init=False, repr=False)  # of every head left, where its key-value head is there

    def __post_init__(self) -> None:
        if self.group == 1:  # neurons, and most heads
            object.__setattr__(self, "kv_kept", self.kept)
            object.__setattr__(self, "kv_index", first_numbers(len(self.kept)))
            return
        kv_kept = tuple(sorted({index // self.group for index in self.kept}))
        object.__setattr__(self, "kv_kept", kv_kept)
        object.__setattr__(self, "kv_index", positions([index // self.group for index in self.kept], kv_kept))

    @classmethod
    def whole(cls, kind: str, count: int, group: int = 1) -> Layout:
        """A site that has lost nothing."""
        everything = first_numbers(count)
        return cls(kind, everything, count, group, everything)

    @classmethod
    def read(cls, kind: str, entry: dict[str, Any]) -> Layout:
        """What an entry of the record says; `makes_sense` must have passed it."""
        kept, built = (_indices(entry, key) for key in ("kept", "built"))
        return cls(kind, kept, entry["of"], entry["group"], built)

    def keeping(self, kept: Sequence[int]) -> Layout:
        """The same site with only these heads."""
        return replace(self, kept=tuple(kept))

    def entry(self, built: Sequence[int] | None = None) -> dict[str, Any]:
        """What the record says of the site; `built` where the configuration is written for other heads."""
        write: Any = format_ranges if self.kind.endswith(FEED_FORWARD) else list
        facts: dict[str, Any] = {"kept": write(self.kept), "of": self.original, "group": self.group}
        built = self.built if built is None else built
        return facts if len(built) == self.original else {**facts, "built": write(built)}

    @property
    def is_even(self) -> bool:
        """Whether every key-value head left serves the same number of query heads, in order."""
        if not self.kept or len(self.kept) % len(self.kv_kept):
            return False
        size = len(self.kept) // len(self.kv_kept)
        return self.kv_index == tuple(position // size for position in range(len(self.kept)))

    @property
    def columns(self) -> tuple[int, ...]:
        """Where the heads left are in a tensor that has an entry for every head in `built`."""
        return positions(self.kept, self.built)


@lru_cache(maxsize=64)
def first_numbers(count: int) -> tuple[int, ...]:
    """0, 1, … as one tuple for all layers of a model."""
    return tuple(range(count))


def positions(wanted: Sequence[int], there: Sequence[int]) -> tuple[int, ...]:
    """Where each of some numbers is in a sequence of them; as fast for a hundred thousand neurons as for eight heads.

    >>> positions([4, 1], [0, 1, 4])
    (2, 1)
    """
    place = {number: position for position, number in enumerate(there)}
    return tuple(place[number] for number in wanted)


def recorded_sites(config: Any) -> dict[str, Any]:
    """The entries in a configuration's record, by site; none for a model that nothing was removed from."""
    return (getattr(config, "headcount", None) or {}).get("sites", {})


def makes_sense(site: str, entry: Any) -> bool:
    """Whether an entry that comes from a file is consistent in itself.

    >>> makes_sense("encoder.0", {"kept": [0, 2], "of": 4, "group": 1})
    True
    >>> makes_sense("encoder.0", {"kept": [2, 0], "of": 4, "group": 1})
    False
    >>> makes_sense("encoder_ffn.0", {"kept": "0-511, 600", "of": 1024, "group": 1})
    True
    """
    if not isinstance(entry, dict) or not re.fullmatch(r"[a-z_]+\.\d{1,6}", site):
        return False
    original, group = entry.get("of"), entry.get("group")
    if type(original) is not int or type(group) is not int or not 1 <= group <= original <= MOST or original % group:
        return False
    neurons = site.partition(".")[0].endswith(FEED_FORWARD)
    if neurons and group != 1:
        return False
    for key in ("kept", *(["built"] if "built" in entry else [])):
        if not (_are_ranges if neurons else _are_heads)(entry.get(key), original):
            return False
    kept, built = (_indices(entry, key) for key in ("kept", "built"))
    return bool(built) and set(kept) <= set(built)


def _are_heads(heads: Any, original: int) -> bool:
    """Whether a value from a file is a list of heads in their order."""
    if not isinstance(heads, list) or any(type(index) is not int for index in heads):
        return False
    return heads == sorted(set(heads)) and all(index in range(original) for index in heads)


def _are_ranges(neurons: Any, original: int) -> bool:
    """Whether a value from a file is a text of ranges in their order."""
    return isinstance(neurons, str) and parse_ranges(neurons, original) is not None


def _indices(entry: dict[str, Any], key: str) -> tuple[int, ...]:
    """The units that an entry names under a key; without the key, all of them."""
    if key not in entry:
        return first_numbers(entry["of"])
    value = entry[key]
    return parse_ranges(value, entry["of"]) or () if isinstance(value, str) else tuple(value)
