"""`Head`: the one address of a head or neuron, in Python, on the command line, in JSON and in reports.

A neuron of a feed-forward layer is a head of width 1 (`encoder_ffn.3.512`). Many at once are written as a range
(`encoder_ffn.3.0-511`), and a whole sublayer by its site (`encoder.3`, `encoder_ffn.3`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headcount.errors import HeadcountError, counted, unknown

UNITS = ("heads", "neurons", "sublayers")
FEED_FORWARD = "_ffn"  # how the kinds of feed-forward sites end
_HEAD = re.compile(r"([a-z][a-z_]*)\.([0-9]{1,6})\.([0-9]{1,6})")
_SPAN = re.compile(r"([a-z][a-z_]*)\.([0-9]{1,6})(?:\.([0-9]{1,18})-([0-9]{1,18}))?")
_RANGES = re.compile(r"(?:[0-9]{1,6}(?:-[0-9]{1,6})?(?:, (?!$)|$))*")


class _AtSite:
    """What belongs to one site of a model."""

    __slots__ = ()
    kind: str
    layer: int

    @property
    def site(self) -> str:
        """The site that it belongs to, for example `encoder.3`."""
        return f"{self.kind}.{self.layer}"

    @property
    def is_neuron(self) -> bool:
        """Whether it is in a feed-forward layer."""
        return self.kind.endswith(FEED_FORWARD)


@dataclass(frozen=True, order=True, slots=True)
class Head(_AtSite):
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
        match = _HEAD.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise HeadcountError(
                f"{text!r} is not a head", advice="write kind.layer.index, counted from 0, for example encoder.3.5"
            )
        return cls(match[1], int(match[2]), int(match[3]))

    def __str__(self) -> str:
        return f"{self.kind}.{self.layer}.{self.index}"

    def __repr__(self) -> str:
        return f"Head.parse({str(self)!r})"


@dataclass(frozen=True, slots=True)
class Span(_AtSite):
    """Several units of one site: those from `first` to `last`, or, without numbers, all that it has left."""

    kind: str
    layer: int
    first: int | None = None
    last: int | None = None

    def __str__(self) -> str:
        return self.site if self.first is None else f"{self.site}.{self.first}-{self.last}"


def parse_heads(heads: Iterable[Head | str] | Head | str) -> tuple[Head, ...]:
    """Read single heads from a comma-separated text, an iterable or one head; the same head twice is refused.

    >>> [str(head) for head in parse_heads("encoder.3.5, encoder.0.1")]
    ['encoder.3.5', 'encoder.0.1']
    """
    parsed = tuple(item if isinstance(item, Head) else Head.parse(item) for item in _items(heads))
    refuse_repeated(parsed)
    return parsed


def parse_units(units: Iterable[Head | str] | Head | str) -> tuple[Head | Span, ...]:
    """Read heads, neurons, ranges of them and whole sublayers; `Anatomy.check` finds them in a model.

    >>> [str(unit) for unit in parse_units("encoder.3.5, encoder_ffn.3.0-511, encoder.4")]
    ['encoder.3.5', 'encoder_ffn.3.0-511', 'encoder.4']
    """
    return tuple(item if isinstance(item, Head | Span) else _parse_unit(item) for item in _items(units))


def _parse_unit(text: str) -> Head | Span:
    match = _SPAN.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None and isinstance(text, str) and not _HEAD.fullmatch(text.strip()):
        raise HeadcountError(
            f"{text!r} is not a unit",
            advice="write kind.layer.index, as encoder.3.5, several as encoder_ffn.3.0-511, a sublayer as encoder.3",
        )
    if match is None:
        return Head.parse(text)
    kind, layer = match[1], int(match[2])
    if match[3] is None:
        return Span(kind, layer)
    first, last = int(match[3]), int(match[4])
    if last < first:
        raise HeadcountError(f"the range {text.strip()} runs backwards", advice=f"write {kind}.{layer}.{last}-{first}")
    return Span(kind, layer, first, last)


def _items(units: Any) -> Iterable[Any]:
    if isinstance(units, Head | Span):
        return [units]
    if not isinstance(units, Iterable):
        raise HeadcountError(
            f"{units!r} is not a list of heads", advice="write ['encoder.3.5'] or 'encoder.3.5,cross.0.7'"
        )
    return [part for part in units.split(",") if part.strip()] if isinstance(units, str) else units


def refuse_repeated(heads: Iterable[Head]) -> None:
    """Refuse a head that is named twice, by itself, in a range or with its sublayer."""
    seen: set[Head] = set()
    for head in heads:
        if head in seen:
            what = "neuron" if head.is_neuron else "head"
            raise HeadcountError(f"{what} {head} is named twice", advice=f"name each {what} once")
        seen.add(head)


def format_units(units: Iterable[Head | str] | Head | str, sizes: Mapping[str, int] | None = None) -> list[str]:
    """Write units in short: consecutive indices of a site as a range, and a whole site by its name.

    >>> some = ["encoder_ffn.3.1-2", "encoder_ffn.3.0", "encoder_ffn.3.7", "encoder.0.1", "encoder.0.0"]
    >>> format_units(some)
    ['encoder_ffn.3.0-2', 'encoder_ffn.3.7', 'encoder.0.0-1']
    >>> format_units(some, sizes={"encoder.0": 2, "encoder_ffn.3": 48})
    ['encoder_ffn.3.0-2', 'encoder_ffn.3.7', 'encoder.0']

    sizes: how many units each site has; a site all of whose units are there is written by its name.
    """
    by_site: dict[str, set[int] | None] = {}  # None: the whole site
    for unit in parse_units(units):
        indices = by_site.setdefault(unit.site, set())
        if isinstance(unit, Span) and unit.first is None:
            by_site[unit.site] = None
        elif indices is not None:
            indices.update([unit.index] if isinstance(unit, Head) else range(unit.first or 0, (unit.last or 0) + 1))
    written: list[str] = []
    for site, indices in by_site.items():
        if indices is None or len(indices) == (sizes or {}).get(site):
            written.append(site)
        else:
            written += [f"{site}.{run}" for run in format_ranges(indices).split(", ")]
    return written


def count_units(units: Iterable[Head]) -> str:
    """How many heads and neurons there are among some units.

    >>> count_units([Head("encoder", 0, 1), Head("encoder_ffn", 0, 1), Head("encoder_ffn", 0, 2)])
    '1 head and 2 neurons'
    """
    neurons = [unit.is_neuron for unit in units]
    numbers = {"head": neurons.count(False), "neuron": neurons.count(True)}
    return " and ".join(counted(number, what) for what, number in numbers.items() if number) or "0 heads"


def counts(total: int, step: float) -> list[int]:
    """Numbers of heads to remove, from none to all of them, `step` more each time.

    >>> counts(72, 0.25)
    [0, 18, 36, 54, 72]
    >>> counts(8, 3)
    [0, 3, 6, 8]

    step: a share of the heads below 1 (M19: 0.1), or a whole number of them.
    """
    if not step > 0 or (step >= 1 and step != int(step)):
        raise HeadcountError(
            f"{step:g} is neither a share nor a number of heads", advice="give {step} as 0.1, a share, or as 5"
        )
    each = step * total if step < 1 else int(step)
    found = [min(total, round(each * number)) for number in range(int(total / max(each, 1e-9)) + 2)]
    return sorted({*found, total})


def format_ranges(numbers: Iterable[int]) -> str:
    """Write numbers in short.

    >>> format_ranges([0, 1, 2, 5])
    '0-2, 5'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1][-1:] = [number] if len(runs[-1]) > 1 else [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def parse_ranges(text: str, below: int) -> tuple[int, ...] | None:
    """The numbers that `format_ranges` wrote, all of them less than `below`; None for any other text.

    >>> parse_ranges("0-2, 5", below=8)
    (0, 1, 2, 5)
    >>> parse_ranges("0-9", below=8) is parse_ranges("2, 1", below=8) is parse_ranges("0, 1", below=8) is None
    True
    """
    if _RANGES.fullmatch(text) is None:
        return None
    numbers: list[int] = []
    for run in text.split(", ") if text else ():
        first, last = (int(run.partition("-")[0]), int(run.rpartition("-")[2]))
        if not (numbers[-1] if numbers else -1) < first <= last < below:  # checked before a range is written out
            return None
        numbers.extend(range(first, last + 1))
    return tuple(numbers) if format_ranges(numbers) == text else None


def asked_units(units: str | Iterable[str]) -> tuple[str, ...]:
    """The kinds of units asked for, in the order of `UNITS`; any other name is refused.

    >>> asked_units("neurons, heads")
    ('heads', 'neurons')
    """
    given = [units] if isinstance(units, str) or not isinstance(units, Iterable) else list(units)
    for one in given:
        if not isinstance(one, str):
            raise HeadcountError(f"{one!r} is not a kind of unit", advice=f"choose {{units}} from {', '.join(UNITS)}")
    names = [name.strip() for one in given for name in one.split(",")]
    for name in names:
        if name not in UNITS:
            raise HeadcountError(unknown("unit", name, UNITS))
    if not names:
        raise HeadcountError("no units were asked for", advice=f"choose {{units}} from {', '.join(UNITS)}")
    return tuple(name for name in UNITS if name in names)
