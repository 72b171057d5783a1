"""ALBERT: layers share one module, and the attention class adds the residual and normalises itself."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from headcount.structure.families import Family, neurons, separate
from headcount.structure.transformers_internals import Emptied


class EmptiedAlbert(Emptied):
    def finish(self, projected: Tensor, hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.LayerNorm(hidden + self.output_dropout(projected)), None  # type: ignore[attr-defined]


def _layers(modules: Mapping[str, Any], path: str) -> list[int]:
    """The layers that run `…albert_layer_groups.GROUP.albert_layers.INNER.attention`."""
    prefix, _, rest = path.partition("albert_layer_groups.")
    group, inner = int(rest.split(".")[0]), int(rest.split(".")[2])
    config = modules[prefix.rstrip(".")].config
    per_group = config.num_hidden_layers / config.num_hidden_groups
    outer = [layer for layer in range(config.num_hidden_layers) if int(layer / per_group) == group]
    return [layer * config.inner_group_num + inner for layer in outer]


ALBERT = Family(
    name="ALBERT",
    classes=("AlbertAttention",),
    inputs=separate("query", "key", "value"),
    output="dense",
    head_dim="attention_head_size",
    feed_forward=neurons("ffn", to="ffn_output"),
    layers=_layers,
    emptied=EmptiedAlbert,
)
