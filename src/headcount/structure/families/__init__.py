"""Families: what each declares of its classes, projections, heads and neurons, and all that headcount knows by name.

Each file in this folder declares one family or a few relatives, and is found by itself; `bart.py` is a short example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from torch import nn

from headcount.structure.transformers_internals import Emptied, EmptiedContext, is_transposed

Stretches = tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """One projection whose output rows belong to heads or neurons.

    rows: the stretches of rows in their order. `"q"` has `width` rows for every query head, `"kv"` for every key-value
        head, `"qkv"` has `3 * width` rows for every head (query, key and value side by side), `"n"` one row for every
        neuron. A function where it depends on the module.
    optional: some modules of the family lack this projection.
    """

    path: str
    rows: Stretches | Callable[[Any], Stretches] = ("q",)
    optional: bool = False

    def stretches(self, module: Any) -> Stretches:
        """The stretches of rows in this module."""
        return self.rows if isinstance(self.rows, tuple) else self.rows(module)


def separate(query: str, key: str, value: str) -> tuple[Part, ...]:
    """Three projections of their own."""
    return Part(query), Part(key, ("kv",)), Part(value, ("kv",))


@dataclass(frozen=True)
class FeedForward:
    """Where the neurons of a Transformer layer are. Paths start at the layer; `-1` is the last of a module list.

    inputs: the projections that make the neurons: one; in a gated layer two, or a fused one with rows `("n", "n")`.
    output: the projection that reads them.
    uniform: the configuration key for a number of neurons that all layers share. A stack may have its own
        (`encoder_ffn_dim` for `ffn_dim`).
    """

    inputs: tuple[Part, ...]
    output: str
    uniform: str | None = "intermediate_size"

    def count(self, block: nn.Module) -> int | None:
        """How many neurons a Transformer layer has if it is built as declared, else None."""
        output = inside(block, self.output)[1]
        found = [(part, inside(block, part.path)[1]) for part in self.inputs]
        there = [(part, module) for part, module in found if module is not None]
        if output is None or not there or any(module is None and not part.optional for part, module in found):
            return None
        if any(getattr(module, "weight", None) is None for module in (output, *(module for _, module in there))):
            return None
        count = features(output, "in_features", 0)
        fits = all(features(module, "out_features", 1) == count * len(part.stretches(module)) for part, module in there)
        return count if fits else None


def inside(block: nn.Module, path: str) -> tuple[str, Any]:
    """What is at a path from a module, or None, and the path with `-1` written out."""
    names: list[str] = []
    module: Any = block
    for name in path.split("."):
        name = str(len(module) - 1) if name == "-1" and isinstance(module, nn.ModuleList) else name
        module = getattr(module, name, None)
        names.append(name)
    return ".".join(names), module if isinstance(module, nn.Module) else None


def features(projection: Any, name: str, axis: int) -> int:
    """The number of inputs (axis 0) or outputs (axis 1) of a projection; a quantized weight has another shape."""
    size = getattr(projection, name, None)
    return int(projection.weight.shape[axis if is_transposed(projection) else 1 - axis] if size is None else size)


def neurons(*inputs: str, to: str, uniform: str | None = "intermediate_size") -> FeedForward:
    """A feed-forward layer with one row for every neuron in each of its input projections."""
    return FeedForward(tuple(Part(path, ("n",)) for path in inputs), to, uniform)


@dataclass(frozen=True)
class Family:
    """Where the heads of a model family are. Most families need the first six fields; the rest is for exceptions.

    name: as people write it.
    classes: the names of its attention classes in transformers.
    inputs: the projections that make queries, keys and values.
    output: the path of the output projection from the attention module; a leading `^` starts at its parent.
    head_dim: the attribute that holds the size of a head.
    feed_forward: where the neurons are, in the layer around the attention.
    kind: of its attention, or a function of the module, where neither name nor attributes tell.
    cross: the names that its layers give to cross-attention.
    causal: the kinds of its self-attention in which a token sees only the tokens before it.
    configs: of each kind, the name of the configuration inside the model's that describes its layers.
    depth: how many module lists up from the attention its layer is.
    layers: from all modules and the path of one, the layers that run it, where layers share modules.
    pruned, emptied: mixins for the attention class once some or all heads have been removed.
    overrides: configuration values that its forward pass reads as a number of heads.
    uniform: the configuration keys for a number of `heads`, `kv_heads` and a `head_dim` that all layers share.
    shared: tensors in an attention module that have an entry for each head along the given axis and serve all layers of
        its stack. `remove` leaves them whole; in a stock checkpoint all layers must have lost the same heads.
    relative_positions: the length of a text has no limit.
    padded_positions: a position embedding that has a padding index counts positions from there on.
    returns_weights: it does not use the attention interface; the module itself returns its attention weights.
    refuse: why a module cannot be treated as the family's others, or None.
    plain: softmax(q k / sqrt(head_dim)) v and nothing else: no rotation, no bias, no shared keys.
    structural: not declared in families/, but guessed from the names of the projections.
    """

    name: str
    classes: tuple[str, ...]
    inputs: tuple[Part, ...]
    output: str
    head_dim: str = "head_dim"
    feed_forward: FeedForward | None = None
    kind: str | Callable[[Any], str] | None = None
    cross: tuple[str, ...] = ()
    causal: tuple[str, ...] = ("decoder",)
    configs: Mapping[str, str] = field(default_factory=dict)
    depth: int = 1
    layers: Callable[[Mapping[str, Any], str], list[int]] | None = None
    pruned: type | None = None
    emptied: type[Emptied] = Emptied
    overrides: tuple[str, ...] = ()
    uniform: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, int] = field(default_factory=dict)
    relative_positions: bool = False
    padded_positions: bool = False
    returns_weights: bool = False
    refuse: Callable[[Any], str | None] = lambda module: None
    plain: bool = False
    structural: bool = False

    @property
    def projects_in_parent(self) -> bool:
        """Whether the attention module returns the heads' outputs and its parent projects them."""
        return self.output.startswith("^")

    def output_path(self, path: str) -> str:
        """The path of the output projection of the attention module at `path`."""
        if self.projects_in_parent:
            return f"{path.rpartition('.')[0]}{self.output[1:]}".lstrip(".")
        return f"{path}.{self.output}".lstrip(".")

    def kind_of(self, module: Any, path: str) -> str:
        """The kind of one of its modules: `encoder`, `decoder`, `cross` or a name of the family's own."""
        if self.kind is not None:
            return self.kind if isinstance(self.kind, str) else self.kind(module)
        if not set(self.cross).isdisjoint(path.split(".")) or getattr(module, "is_cross_attention", False):
            return "cross"
        causal = getattr(module, "is_causal", None)
        return "decoder" if (getattr(module, "is_decoder", False) if causal is None else causal) else "encoder"


# What an undeclared family is recognised by: the names that most models use.
HEAD_SIZES = ("head_dim", "attention_head_size", "head_size")
CROSS = ("encoder_attn", "crossattention", "cross_attn", "EncDecAttention")
PROJECTIONS = (
    (separate("q_proj", "k_proj", "v_proj"), ("o_proj", "out_proj")),
    (separate("query", "key", "value"), ("dense", "^.output.dense")),
)


def guess_family(module: nn.Module) -> Family | None:
    """A family for one attention module with the usual projection names, or None."""
    size = next((name for name in HEAD_SIZES if isinstance(getattr(module, name, None), int)), None)
    if size is None:
        return None
    for inputs, outputs in PROJECTIONS:
        if not all(_is_projection(module, part) for part in inputs):
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
                cross=CROSS,
                emptied=EmptiedContext if output.startswith("^") else Emptied,
                padded_positions=True,
                structural=True,
            )
    return None


def _is_projection(module: Any, part: Part) -> bool:
    child = getattr(module, part.path, None)
    return isinstance(child, nn.Module) and getattr(child, "weight", None) is not None


def _declared() -> Iterator[Family]:
    """The families that the files of this folder declare. They import what is defined above, so they are read last."""
    for file in iter_modules(__path__):
        module = import_module(f"{__name__}.{file.name}")
        yield from (value for value in vars(module).values() if isinstance(value, Family))


FAMILIES = tuple(_declared())
