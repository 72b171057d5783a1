"""Llama and the models built like it, and Phi-3, whose projections are fused."""

from headcount.structure.families import Family, FeedForward, Part, neurons, separate

LLAMA = Family(
    name="Llama",
    classes=tuple(f"{name}Attention" for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma")),
    inputs=separate("q_proj", "k_proj", "v_proj"),
    output="o_proj",
    feed_forward=neurons("mlp.gate_proj", "mlp.up_proj", to="mlp.down_proj"),
    uniform={"heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim"},
)

PHI3 = Family(
    name="Phi-3",
    classes=("Phi3Attention",),
    inputs=(Part("qkv_proj", ("q", "kv", "kv")),),
    output="o_proj",
    feed_forward=FeedForward((Part("mlp.gate_up_proj", ("n", "n")),), "mlp.down_proj"),
    overrides=("num_attention_heads",),
    uniform={"heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim"},
)
