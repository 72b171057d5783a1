"""T5 and mT5: the first layer's position bias, one column per head, serves all layers of its stack."""

from typing import Any

from torch import Tensor

from headcount.structure.family import Family, separate
from headcount.structure.transformers_internals import Emptied, select_heads


class PrunedT5:
    """Takes its own heads' share of the position bias, and hands the whole bias on to the next layer."""

    def _columns(self) -> list[int]:
        """Where its heads are in the position bias: a stock checkpoint of ours has a column for each head it has."""
        return [self.headcount_built.index(head) for head in self.headcount_kept]  # type: ignore[attr-defined]

    def compute_bias(self, *args: Any, **kwargs: Any) -> Tensor:
        self._whole_bias = super().compute_bias(*args, **kwargs)  # type: ignore[misc]  # (1, all heads, T, S)
        return select_heads(self._whole_bias, self._columns())

    def forward(self, hidden_states: Tensor, *args: Any, position_bias: Any = None, **kwargs: Any) -> Any:
        if self.headcount_kind == "cross":  # type: ignore[attr-defined]
            # Cross layers hand each other a bias of zeros with one layer's number of heads: make it anew instead.
            output, _, *weights = super().forward(hidden_states, *args, position_bias=None, **kwargs)  # type: ignore[misc]
            return output, None, *weights
        share = None if position_bias is None else select_heads(position_bias, self._columns())
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
        return projected, None if _kind(self) == "cross" else bias, None


def _kind(module: Any) -> str:
    if not module.is_decoder:
        return "encoder"
    return "decoder" if module.is_causal else "cross"


FAMILY = Family(
    name="T5",
    classes=("T5Attention", "MT5Attention"),
    inputs=separate("q", "k", "v"),
    output="o",
    head_dim="key_value_proj_dim",
    kind=_kind,
    depth=2,
    pruned=PrunedT5,
    emptied=EmptiedT5,
    uniform={"heads": "num_heads"},
)
