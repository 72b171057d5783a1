"""A model family is data: what its attention classes and projections are called, and how heads lie in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from headcount.structure.transformers_internals import Emptied, EmptiedContext

HEAD_SIZES = ("head_dim", "attention_head_size", "head_size")


@dataclass(frozen=True)
class Part:
    """One projection whose output rows belong to heads.

    `rows` lists the stretches of rows in their order: `"q"` has `head_dim` rows for every query head, `"kv"` for
    every key-value head, `"qkv"` has `3 * head_dim` rows for every head (query, key and value side by side).
    """

    path: str
    rows: tuple[str, ...] = ("q",)
    optional: bool = False


def separate(query: str, key: str, value: str) -> tuple[Part, ...]:
    """Three projections of their own."""
    return Part(query), Part(key, ("kv",)), Part(value, ("kv",))


@dataclass(frozen=True)
class Family:
    """Where the heads of a model family are.

    `classes` are the names of its attention classes, `inputs` the projections that make queries, keys and values,
    `output` the path of the output projection from the attention module (a leading `^` starts at its parent) and
    `head_dim` the attribute that holds the size of a head. The rest is for exceptions: a `kind` that cannot be told
    from the module, mixins that take the place of the attention class once it is `pruned` or `emptied`, configuration
    values that its forward pass reads (`overrides`), and the configuration keys with which every layer has the same
    number of heads of the same size (`uniform`).
    """

    name: str
    classes: tuple[str, ...]
    inputs: tuple[Part, ...]
    output: str
    head_dim: str = "head_dim"
    kind: str | Callable[[nn.Module], str] | None = None
    depth: int = 1  # how many module lists up the layer is
    pruned: type | None = None
    emptied: type[Emptied] = Emptied
    overrides: tuple[str, ...] = ()
    uniform: dict[str, str] = field(default_factory=dict)
    returns_weights: bool = False  # no attention interface: the module itself returns its attention weights
    refuse: Callable[[nn.Module], str | None] = lambda module: None
    structural: bool = False
    plain: bool = False  # softmax(q k / sqrt(head_dim)) v and nothing else: no rotation, no bias, no shared keys


NAMES = (
    (separate("q_proj", "k_proj", "v_proj"), ("o_proj", "out_proj")),
    (separate("query", "key", "value"), ("dense", "^.output.dense")),
)


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
