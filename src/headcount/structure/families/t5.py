"""T5 and mT5: the first layer's position bias, one column per head, serves all layers of its stack."""

from typing import Any

from torch import Tensor

from headcount.structure.families import Family, FeedForward, Part, separate
from headcount.structure.transformers_internals import Emptied, layout_of, select_heads


class PrunedT5:
    """Takes its own heads' share of the position bias, and passes the whole bias on to the next layer."""

    def compute_bias(self, *args: Any, **kwargs: Any) -> Tensor:
        self._whole_bias = super().compute_bias(*args, **kwargs)  # type: ignore[misc]  # (1, all heads, T, S)
        return self._own(self._whole_bias)

    def _own(self, bias: Tensor) -> Tensor:
        """The share of its own heads: a bias has a column for each head that a model is built with."""
        return select_heads(bias, layout_of(self).columns)  # type: ignore[union-attr]

    def forward(self, hidden_states: Tensor, *args: Any, position_bias: Any = None, **kwargs: Any) -> Any:
        if _kind(self) == "cross":
            # Cross layers pass each other a bias of zeros with one layer's number of heads: make it anew instead.
            output, _, *weights = super().forward(hidden_states, *args, position_bias=None, **kwargs)  # type: ignore[misc]
            return output, None, *weights
        share = None if position_bias is None else self._own(position_bias)
        try:
            output, _, *weights = super().forward(hidden_states, *args, position_bias=share, **kwargs)  # type: ignore[misc]
        finally:
            whole = self.__dict__.pop("_whole_bias", None)
        return output, whole if position_bias is None else position_bias, *weights


class EmptiedT5(Emptied):
    def finish(self, projected: Tensor, hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bias = kwargs.get("position_bias")
        if bias is None and self.has_relative_attention_bias:  # type: ignore[attr-defined]
            cache = kwargs.get("past_key_values")
            seen = 0 if cache is None else int(cache.get_seq_length(self.layer_idx))  # type: ignore[attr-defined]
            length = hidden.shape[1]
            bias = self.compute_bias(length, seen + length, hidden.device, seen)  # type: ignore[attr-defined]
            bias = self.__dict__.pop("_whole_bias", bias)  # other layers need that of all heads
        return projected, None if _kind(self) == "cross" else bias, None


def _kind(module: Any) -> str:
    if not module.is_decoder:
        return "encoder"
    return "decoder" if module.is_causal else "cross"


DENSE = "layer.-1.DenseReluDense"

T5 = Family(
    name="T5",
    classes=("T5Attention", "MT5Attention"),
    inputs=separate("q", "k", "v"),
    output="o",
    head_dim="key_value_proj_dim",
    feed_forward=FeedForward(
        tuple(Part(f"{DENSE}.{name}", ("n",), optional=True) for name in ("wi", "wi_0", "wi_1")), f"{DENSE}.wo", "d_ff"
    ),
    kind=_kind,
    depth=2,
    pruned=PrunedT5,
    emptied=EmptiedT5,
    uniform={"heads": "num_heads"},
    shared={"relative_attention_bias.weight": 1},
    relative_positions=True,
)
