"""GPT-2 and GPT-NeoX, whose queries, keys and values come from one projection."""

from typing import Any

from headcount.structure.families import Family, Part, Stretches, neurons


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
