"""Phi-3: one fused projection, split by the number of heads that the configuration names."""

from headcount.structure.family_declaration import Family, FeedForward, Part

FAMILY = Family(
    name="Phi-3",
    classes=("Phi3Attention",),
    inputs=(Part("qkv_proj", ("q", "kv", "kv")),),
    output="o_proj",
    feed_forward=FeedForward((Part("mlp.gate_up_proj", ("n", "n")),), "mlp.down_proj"),
    overrides=("num_attention_heads",),
    uniform={"heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim"},
)
