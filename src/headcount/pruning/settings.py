"""How far to cut: within a drop, or to a number of heads, parameters or a speed."""

from __future__ import annotations

from dataclasses import dataclass

from headcount.errors import HeadcountError


@dataclass(frozen=True)
class Target:
    """What the cut is for; exactly one of these, or `max_drop` alone.

    heads: so many heads less, a share as a float or a number as an int. params: this share of all parameters less.
    speedup: so many times as fast, measured.
    """

    heads: float | int | None = None
    params: float | None = None
    speedup: float | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("heads", "params", "speedup") if getattr(self, name) is not None]
        if len(given) > 1:
            raise HeadcountError(f"--{given[0]} and --{given[1]} say two things at once; give one of them")
        if self.heads is not None and (self.heads <= 0 or (isinstance(self.heads, float) and self.heads > 1)):
            raise HeadcountError(f"heads is a share such as 50% or a number of heads, not {self.heads:g}")
        if self.params is not None and not 0 < self.params < 1:
            raise HeadcountError(f"params is the share of all parameters to save, such as 10%, not {self.params:g}")
        if self.speedup is not None and self.speedup <= 1:
            raise HeadcountError(f"speedup is how many times as fast, above 1, not {self.speedup:g}")

    @property
    def given(self) -> bool:
        """Whether the size of the cut is asked for, not searched for within a drop."""
        return any(value is not None for value in (self.heads, self.params, self.speedup))

    def head_count(self, total: int) -> int:
        """The number of heads to remove, of `total` that may go."""
        assert self.heads is not None
        number = self.heads if isinstance(self.heads, int) else round(self.heads * total)
        if number > total:
            raise HeadcountError(f"{number} heads cannot go: only {total} of them may")
        if number < 1:
            raise HeadcountError(f"{self.heads:.2%} of {total} heads is less than one")
        return number


def share_or_number(text: str | None, name: str) -> float | int | None:
    """Read `50%`, `0.5` or `36`.

    >>> share_or_number("50%", "heads"), share_or_number("36", "heads")
    (0.5, 36)
    """
    if text is None:
        return None
    try:
        if text.isdigit():
            return int(text)
        return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise HeadcountError(f"--{name} {text}: write a share such as 50%, or a number") from None
