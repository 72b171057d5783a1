"""`report`: one self-contained page about one or several runs."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from headcount.errors import HeadcountError
from headcount.report.page import MARK, page
from headcount.report.reading import read
from headcount.report.runs import Run, by_model


def report(results: Any, file: str | Path) -> Path:
    """Write one HTML page about runs: no network, nothing computed, everything in one file.

    >>> import tempfile
    >>> run = {"command": "ablate", "model": "toy", "metric": "accuracy", "n": 10, "base": 0.9, "heads": []}
    >>> with tempfile.TemporaryDirectory() as place:
    ...     report(run, f"{place}/report.html").read_text()[:15]
    '<!doctype html>'

    results: a run directory or several, or what headcount's functions and `--json` return.
    file: where it goes. An older report there is replaced; any other file is refused.
    """
    runs = [read(result) for result in (results if isinstance(results, (list, tuple)) else [results])]
    if not runs:
        raise HeadcountError("there is nothing to report on; name one run directory or more")
    path = Path(file)
    target = path.resolve()  # what a link points to is written, and the link stays
    _refuse_strangers(path, target)
    _write(target, html(runs).encode())
    return path


def html(runs: list[Run]) -> str:
    """The page as text."""
    return page(by_model(runs))


def _refuse_strangers(path: Path, target: Path) -> None:
    """Only a report may be overwritten by a report; devices and pipes are left alone."""
    if target.is_dir():
        raise HeadcountError(f"{path} is a directory; name a file, such as {path / 'report.html'}")
    if not target.parent.is_dir():
        raise HeadcountError(f"there is no directory {path.parent} to write {path.name} to; make it first")
    if not target.exists():
        return
    if not target.is_file():
        raise HeadcountError(f"{path} is no ordinary file; choose another name")
    with target.open("rb") as stream:
        if stream.read(len(MARK)) != MARK.encode() and target.stat().st_size:
            raise HeadcountError(f"{path} is there and is no report of headcount; choose another name")


def _write(path: Path, content: bytes) -> None:
    """The whole file, or what was there before."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        raise HeadcountError(f"cannot write {path}: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
