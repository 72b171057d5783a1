"""ALBERT: layers share one module, and the attention class adds the residual and normalises itself."""

from typing import Any

from torch import Tensor

from headcount.structure.family import Family, separate
from headcount.structure.transformers_internals import Emptied


class EmptiedAlbert(Emptied):
    def finish(self, projected: Tensor, hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.LayerNorm(hidden + self.output_dropout(projected)), None  # type: ignore[attr-defined]


FAMILY = Family(
    name="ALBERT",
    classes=("AlbertAttention",),
    inputs=separate("query", "key", "value"),
    output="dense",
    head_dim="attention_head_size",
    emptied=EmptiedAlbert,
)
