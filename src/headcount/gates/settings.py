"""How gates are trained, and which weights learn along with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from headcount.anatomy import anatomy
from headcount.errors import HeadcountError, unknown
from headcount.heads import Head

WEIGHTS = ("all", "gated", "none")


@dataclass(frozen=True)
class Gating:
    """Settings of `train_gates`.

    epochs: of each stage. lr: of the weights, at its height, after a tenth of the steps; it falls to 0 at the end.
    gate_lr: of the gates, steady. tokens: per batch, padding included.
    weights: "all" learn along; "gated": only layers that have gates do, and the rest is frozen, so that functions
    cannot move there (V19 freezes the decoder when it prunes the encoder); "none": the gates learn alone.
    By default "gated" if only some kinds have gates, else "all".
    """

    epochs: int = 1
    lr: float = 5e-5
    gate_lr: float = 0.1
    tokens: int = 1024
    weights: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.lr <= 0 or self.gate_lr <= 0 or self.tokens < 1:
            raise HeadcountError(f"these are no settings to train gates with: {self}")
        if self.weights is not None and self.weights not in WEIGHTS:
            raise HeadcountError(unknown("choice of weights", self.weights, WEIGHTS))


def trained_weights(model: nn.Module, heads: Sequence[Head], which: str | None) -> list[nn.Parameter]:
    """The parameters that learn along with the gates of these heads; fixed ones, such as sinusoids, stay fixed."""
    found = anatomy(model)
    which = which or ("all" if len(heads) == len(found.heads) else "gated")
    if which == "none":
        return []
    if which == "all":
        return [parameter for parameter in model.parameters() if parameter.requires_grad]
    names = {head.site for head in heads}
    blocks = {id(site.block): site.block for site in found.sites if site.name in names}
    unique = {id(parameter): parameter for block in blocks.values() for parameter in block.parameters()}
    return [parameter for parameter in unique.values() if parameter.requires_grad]
