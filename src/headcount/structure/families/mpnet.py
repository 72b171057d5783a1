"""MPNet: one relative position bias for all heads of all layers, and no attention interface."""

from typing import Any

from torch import Tensor

from headcount.structure.families import Family, neurons, separate
from headcount.structure.transformers_internals import Emptied, layout_of, select_heads


class PrunedMPNet:
    """Takes its own heads' share of the position bias that the encoder computes for all."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Any = None, position_bias: Any = None, **kwargs: Any
    ) -> Any:
        if position_bias is not None:  # (B, all heads, T, T)
            position_bias = select_heads(position_bias, layout_of(self).kept)  # type: ignore[union-attr]
        return super().forward(hidden_states, attention_mask, position_bias, **kwargs)  # type: ignore[misc]


class EmptiedMPNet(Emptied):
    def finish(self, projected: Tensor, hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("output_attentions"):
            batch, length = hidden.shape[:2]
            return projected, hidden.new_zeros(batch, 0, length, length)
        return (projected,)


MPNET = Family(
    name="MPNet",
    classes=("MPNetSelfAttention",),
    inputs=separate("q", "k", "v"),
    output="o",
    head_dim="attention_head_size",
    feed_forward=neurons("intermediate.dense", to="output.dense"),
    kind="encoder",
    pruned=PrunedMPNet,
    emptied=EmptiedMPNet,
    padded_positions=True,
    returns_weights=True,
)
