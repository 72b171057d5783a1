"""GPT-2: queries, keys and values in one transposed projection; cross-attention has its queries apart."""

from typing import Any

from headcount.structure.family_declaration import Family, Part, Stretches, neurons


def _rows(module: Any) -> Stretches:
    return ("kv", "kv") if hasattr(module, "q_attn") else ("q", "kv", "kv")


FAMILY = Family(
    name="GPT-2",
    classes=("GPT2Attention",),
    inputs=(Part("q_attn", optional=True), Part("c_attn", _rows)),
    output="c_proj",
    feed_forward=neurons("mlp.c_fc", to="mlp.c_proj", uniform="n_inner"),
    cross=("crossattention",),
)
