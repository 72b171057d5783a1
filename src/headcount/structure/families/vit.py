"""ViT and DeiT."""

from headcount.structure.family import Family, separate

FAMILY = Family(
    name="ViT",
    classes=("ViTAttention", "DeiTAttention"),
    inputs=separate("q_proj", "k_proj", "v_proj"),
    output="o_proj",
    uniform={"heads": "num_attention_heads", "head_dim": "head_dim"},
    plain=True,
)
