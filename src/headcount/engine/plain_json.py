"""Results as JSON that every reader takes: JSON has no nan and no infinity, and numpy's numbers are numbers."""

from __future__ import annotations

import json
from typing import Any


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
