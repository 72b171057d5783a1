"""ViT and DeiT."""

from headcount.structure.families import Family, neurons, separate

FAMILY = Family(
    name="ViT",
    classes=("ViTAttention", "DeiTAttention"),
    inputs=separate("q_proj", "k_proj", "v_proj"),
    output="o_proj",
    feed_forward=neurons("mlp.fc1", to="mlp.fc2"),
    uniform={"heads": "num_attention_heads", "head_dim": "head_dim"},
    plain=True,
)
