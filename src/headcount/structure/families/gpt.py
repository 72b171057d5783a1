"""GPT-2, GPT-NeoX and BLOOM, whose queries, keys and values come from one projection."""

from typing import Any

from torch import Tensor, nn

from headcount.structure.families import Family, Part, Stretches, neurons
from headcount.structure.transformers_internals import Emptied, layout_of, select_heads


def _rows(module: Any) -> Stretches:
    return ("kv", "kv") if hasattr(module, "q_attn") else ("q", "kv", "kv")


GPT2 = Family(
    name="GPT-2",
    classes=("GPT2Attention",),
    inputs=(Part("q_attn", optional=True), Part("c_attn", _rows)),
    output="c_proj",
    feed_forward=neurons("mlp.c_fc", to="mlp.c_proj", uniform="n_inner"),
    cross=("crossattention",),
)

GPT_NEOX = Family(
    name="GPT-NeoX",
    classes=("GPTNeoXAttention",),
    inputs=(Part("query_key_value", ("qkv",)),),
    output="dense",
    head_dim="head_size",
    feed_forward=neurons("mlp.dense_h_to_4h", to="mlp.dense_4h_to_h"),
)


class PrunedBloom:
    """Takes its own heads' share of the alibi tensor that the model computes for all."""

    def forward(self, hidden_states: Tensor, residual: Tensor, alibi: Tensor, *args: Any, **kwargs: Any) -> Any:
        alibi = alibi.view(hidden_states.shape[0], -1, *alibi.shape[1:])  # (B, all heads, 1, S)
        alibi = select_heads(alibi, layout_of(self).kept).flatten(0, 1)  # type: ignore[union-attr]
        return super().forward(hidden_states, residual, alibi, *args, **kwargs)  # type: ignore[misc]


class EmptiedBloom(Emptied):
    def finish(self, projected: Tensor, hidden: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        residual = args[1] if len(args) > 1 else kwargs["residual"]
        dropped = nn.functional.dropout(projected, self.hidden_dropout, self.training)  # type: ignore[attr-defined]
        return residual + dropped, None


def _bypasses_projection(module: Any) -> str | None:
    if module.pretraining_tp > 1 and module.slow_but_exact:
        return "BLOOM with slow_but_exact and pretraining_tp > 1 bypasses its projection; set slow_but_exact=False"
    return None


# Alibi slopes per head, the residual added inside, and no attention interface.
BLOOM = Family(
    name="BLOOM",
    classes=("BloomAttention",),
    inputs=(Part("query_key_value", ("qkv",)),),
    output="dense",
    feed_forward=neurons("mlp.dense_h_to_4h", to="mlp.dense_4h_to_h", uniform=None),
    kind="decoder",
    pruned=PrunedBloom,
    emptied=EmptiedBloom,
    relative_positions=True,
    returns_weights=True,
    refuse=_bypasses_projection,
)
