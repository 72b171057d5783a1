"""How many heads go at each step, and which of an order may."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from headcount.anatomy import Anatomy
from headcount.errors import HeadcountError, unknown
from headcount.heads import Head


def counts(total: int, step: float) -> list[int]:
    """Numbers of heads removed, from none to all of them, `step` more each time.

    >>> counts(72, 0.25)
    [0, 18, 36, 54, 72]
    >>> counts(8, 3)
    [0, 3, 6, 8]

    step: a share of the heads below 1 (M19: 0.1), or a whole number of them.
    """
    if not step > 0 or (step >= 1 and step != int(step)):
        raise HeadcountError(f"a step is a share of the heads, such as 0.1, or a number of them, not {step:g}")
    each = step * total if step < 1 else int(step)
    found = [min(total, round(each * number)) for number in range(int(total / max(each, 1e-9)) + 2)]
    return sorted({*found, total})


def removable(order: Sequence[Head], keep_at_least: int = 0, present: Iterable[Head] | None = None) -> list[Head]:
    """The heads of an order that may go, least important first, if every site keeps so many.

    >>> order = [Head("encoder", 0, 0), Head("encoder", 0, 1), Head("encoder", 1, 0)]
    >>> [str(head) for head in removable(order, keep_at_least=1)]
    ['encoder.0.0']

    present: all heads that are there, where the order names only some of them.
    """
    if keep_at_least < 0:
        raise HeadcountError(f"keep_at_least is a number of heads, not {keep_at_least}")
    room = Counter(head.site for head in (order if present is None else present))
    chosen = []
    for head in order:
        if room[head.site] > keep_at_least:
            room[head.site] -= 1
            chosen.append(head)
    return chosen


def of_kinds(found: Anatomy, kinds: Sequence[str] | None) -> list[Head]:
    """The model's heads of these kinds; a kind that it lacks is refused."""
    for kind in kinds or ():
        if kind not in found.kinds:
            raise HeadcountError(unknown("attention kind", kind, found.kinds))
    return [head for head in found.heads if kinds is None or head.kind in kinds]
