"""GPT-2: queries, keys and values in one transposed projection; cross-attention has its queries apart."""

from headcount.structure.family import Family, Part

FAMILY = Family(
    name="GPT-2",
    classes=("GPT2Attention",),
    inputs=(Part("q_attn", optional=True), Part("c_attn", ("q", "kv", "kv"))),
    output="c_proj",
)
