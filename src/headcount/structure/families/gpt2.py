"""GPT-2: queries, keys and values in one transposed projection; cross-attention has its queries apart."""

from typing import Any

from headcount.structure.family import Family, Part, Stretches


def _rows(module: Any) -> Stretches:
    return ("kv", "kv") if hasattr(module, "q_attn") else ("q", "kv", "kv")


FAMILY = Family(
    name="GPT-2",
    classes=("GPT2Attention",),
    inputs=(Part("q_attn", optional=True), Part("c_attn", _rows)),
    output="c_proj",
    cross=("crossattention",),
)
