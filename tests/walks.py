"""Which files a call of headcount runs through, in the order of entry: the walks of docs/architecture.md."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import headcount

SOURCE = Path(headcount.__file__).parent


def files_crossed(call: Callable[[], Any]) -> list[str]:
    """The files of headcount in which some function runs during the call, in order of first entry."""
    crossed: dict[str, None] = {}

    def entered(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        file = Path(code.co_filename)
        if event == "call" and is_function and SOURCE in file.parents:
            crossed[file.relative_to(SOURCE).as_posix()] = None

    before = sys.getprofile()
    sys.setprofile(entered)
    try:
        call()
    finally:
        sys.setprofile(before)
    return list(crossed)
