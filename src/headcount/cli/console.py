"""What commands share when they speak: one console, JSON on stdout, and quiet libraries."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

console = Console(highlight=False, soft_wrap=False)
messages = Console(stderr=True, highlight=False)


def print_json(content: dict[str, Any]) -> None:
    """One object on stdout; numbers that JSON does not have (nan) become null."""
    print(json.dumps(_plain(content), ensure_ascii=False, indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if (isinstance(value, float) and value != value) or value in (float("inf"), float("-inf")):
        return None
    if isinstance(value, (str, int, float, type(None))):
        return value
    return value.item() if hasattr(value, "item") else str(value)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries' own progress bars and warnings out of our output."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
