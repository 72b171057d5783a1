"""ALBERT: layers share one module, and the attention class adds the residual and normalises itself."""

from typing import Any

from torch import Tensor

from headcount.anatomy.emptied import Emptied, bias_only
from headcount.anatomy.family import Family, separate


class EmptiedAlbert(Emptied):
    def without_heads(self, hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bias = self.output_dropout(bias_only(self.dense, hidden))  # type: ignore[attr-defined]
        return self.LayerNorm(hidden + bias), None  # type: ignore[attr-defined]


FAMILY = Family(
    name="ALBERT",
    classes=("AlbertAttention",),
    inputs=separate("query", "key", "value"),
    output="dense",
    head_dim="attention_head_size",
    emptied=EmptiedAlbert,
)
