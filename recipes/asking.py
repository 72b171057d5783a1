"""What recipes share at the command line: numbers in their range, a place to write to, and errors in one sentence."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Collection
from pathlib import Path

from headcount.errors import HeadcountError, first_line


def count(least: int = 1) -> Callable[[str], int]:
    """A whole number that is not too small.

    >>> count()("3")
    3
    >>> count(2)("1")
    Traceback (most recent call last):
        ...
    argparse.ArgumentTypeError: a whole number of at least 2, not 1
    """

    def read(text: str) -> int:
        if not text.removeprefix("-").isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"a whole number of at least {least}, not {text}")
        return int(text)

    return read


def counts(text: str) -> list[int]:
    """Several of them, with commas between: 1,4,16."""
    return [count()(part) for part in text.split(",")]


def amount(below: float = math.inf, zero: bool = False) -> Callable[[str], float]:
    """A number above zero (or zero, where that means something), and below a limit.

    >>> amount()("1e-4"), amount(below=1, zero=True)("0")
    (0.0001, 0.0)
    >>> amount()("nan")
    Traceback (most recent call last):
        ...
    argparse.ArgumentTypeError: a number above 0, not nan
    """

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < below or (value == 0 and not zero):
            limit = "" if below == math.inf else f" and below {below:g}"
            raise argparse.ArgumentTypeError(f"a number {'from 0' if zero else 'above 0'}{limit}, not {text}")
        return value

    return read


def place(directory: str | Path, own: Collection[str] | None = None) -> Path:
    """Where results go: a directory that is new, empty, or holds nothing but what the recipe itself writes."""
    path = Path(directory)
    taken = next((one for one in (path, *path.parents) if one.exists() and not one.is_dir()), None)
    if taken is not None:
        raise HeadcountError(f"{taken} is a file; choose another directory")
    strangers = [] if own is None or not path.is_dir() else sorted({file.name for file in path.iterdir()} - {*own})
    if strangers:
        raise HeadcountError(f"{path} holds {strangers[0]!r}, which is not of this recipe; choose another directory")
    return path


def files(*names: str) -> None:
    """Every file is there."""
    for name in names:
        if not Path(name).is_file():
            raise HeadcountError(f"there is no file {name}")


def in_one_sentence(main: Callable[[], None]) -> None:
    """Run a recipe; what cannot be done is said in one sentence, with exit code 1, and Ctrl-C exits with 130."""
    try:
        main()
    except (HeadcountError, OSError) as error:
        sys.exit(f"error: {first_line(error)}")
    except KeyboardInterrupt:
        print("stopped; the same command resumes where it stopped", file=sys.stderr)
        sys.exit(130)
