"""Files that are whole or not there, and JSON that every reader takes: no nan, no infinity, no numpy."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from headcount.errors import RunConflict, first_line


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is whole or not there, whenever the process or the machine stops."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise RunConflict(f"cannot write {path}: {error.strerror}; everything finished before is kept") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def read_object(file: Path) -> dict[str, Any] | None:
    """The JSON object that a run keeps in a file, or None if there is no such file."""
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise RunConflict(f"{file} cannot be read: {first_line(error)}") from None
    if not isinstance(content, dict):
        raise RunConflict(f"{file} is not a JSON object")
    return content


def to_json(content: dict[str, Any]) -> str:
    """One object, indented; numbers that JSON does not have become null.

    >>> to_json({"score": float("nan"), 3: (1.5, True)})
    '{\\n  "score": null,\\n  "3": [\\n    1.5,\\n    true\\n  ]\\n}'
    """
    return json.dumps(_plain(content), ensure_ascii=False, indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None  # nan is not less than anything
    if isinstance(value, (str, int, type(None))):
        return value
    return _plain(value.item()) if hasattr(value, "item") else str(value)
