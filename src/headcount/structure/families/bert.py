"""BERT and the models built like it: its attention returns contexts that its parent projects; also DistilBERT,
DeBERTa-v2, MPNet, and ALBERT, whose layers share one module.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from headcount.structure.families import Family, Part, neurons, separate
from headcount.structure.transformers_internals import Emptied, EmptiedContext, layout_of, select_heads

BERT = Family(
    name="BERT",
    classes=tuple(
        f"{name}{kind}Attention"
        for name in ("Bert", "Roberta", "XLMRoberta", "Camembert", "Electra")
        for kind in ("Self", "Cross")
    ),
    inputs=separate("query", "key", "value"),
    output="^.output.dense",
    head_dim="attention_head_size",
    feed_forward=neurons("intermediate.dense", to="output.dense"),
    cross=("crossattention",),
    emptied=EmptiedContext,
    padded_positions=True,  # RoBERTa's
    plain=True,
)

DISTILBERT = Family(
    name="DistilBERT",
    classes=("DistilBertSelfAttention",),
    inputs=separate("q_lin", "k_lin", "v_lin"),
    output="out_lin",
    head_dim="attention_head_size",
    feed_forward=neurons("ffn.lin1", to="ffn.lin2", uniform="hidden_dim"),
    plain=True,
)

# Positions have projections of their own, and there is no attention interface.
DEBERTA_V2 = Family(
    name="DeBERTa-v2",
    classes=("DisentangledSelfAttention",),
    inputs=(
        *separate("query_proj", "key_proj", "value_proj"),
        Part("pos_key_proj", optional=True),
        Part("pos_query_proj", optional=True),
    ),
    output="^.output.dense",
    head_dim="attention_head_size",
    feed_forward=neurons("intermediate.dense", to="output.dense"),
    kind="encoder",
    emptied=EmptiedContext,
    returns_weights=True,
)


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


# One relative position bias serves all heads of all layers, and there is no attention interface.
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


class EmptiedAlbert(Emptied):
    """ALBERT's attention class adds the residual and normalises itself."""

    def finish(self, projected: Tensor, hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.LayerNorm(hidden + self.output_dropout(projected)), None  # type: ignore[attr-defined]


def _layers_of_group(modules: Mapping[str, Any], path: str) -> list[int]:
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
    layers=_layers_of_group,
    emptied=EmptiedAlbert,
)
