"""The fallback: recognise attention in models nobody has declared, by the usual names of its projections."""

from __future__ import annotations

from typing import Any

from torch import nn

from headcount.anatomy.emptied import Emptied, EmptiedContext
from headcount.anatomy.family import Family, Part, separate

NAMES = (
    (separate("q_proj", "k_proj", "v_proj"), ("o_proj", "out_proj")),
    (separate("query", "key", "value"), ("dense", "^.output.dense")),
)
HEAD_SIZES = ("head_dim", "attention_head_size", "head_size")


def guess_family(module: nn.Module) -> Family | None:
    """A family for one attention module with the usual projection names, or None."""
    for inputs, outputs in NAMES:
        size = next((name for name in HEAD_SIZES if isinstance(getattr(module, name, None), int)), None)
        if size is None or not all(_is_projection(module, part) for part in inputs):
            continue
        own = next((name for name in outputs if not name.startswith("^") and hasattr(module, name)), None)
        output = own or next((name for name in outputs if name.startswith("^")), None)
        if output is not None:
            return Family(
                name=f"{type(module).__name__} (by its projection names)",
                classes=(type(module).__name__,),
                inputs=inputs,
                output=output,
                head_dim=size,
                emptied=EmptiedContext if output.startswith("^") else Emptied,
                structural=True,
            )
    return None


def _is_projection(module: Any, part: Part) -> bool:
    child = getattr(module, part.path, None)
    return isinstance(child, nn.Module) and getattr(child, "weight", None) is not None
