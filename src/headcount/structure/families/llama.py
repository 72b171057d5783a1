"""Llama and the decoders built like it, with grouped key-value heads."""

from headcount.structure.family_declaration import Family, neurons, separate

FAMILY = Family(
    name="Llama",
    classes=tuple(f"{name}Attention" for name in ("Llama", "Mistral", "Qwen2", "Qwen3", "Gemma")),
    inputs=separate("q_proj", "k_proj", "v_proj"),
    output="o_proj",
    feed_forward=neurons("mlp.gate_proj", "mlp.up_proj", to="mlp.down_proj"),
    uniform={"heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim"},
)
