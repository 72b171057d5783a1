"""Families that see: ViT with DeiT, and CLIP, whose two encoders are named by what they read."""

from typing import Any

from headcount.structure.families import Family, neurons, separate


def _kind(module: Any) -> str:
    return "text" if "Text" in type(module.config).__name__ else "vision"


VIT = Family(
    name="ViT",
    classes=("ViTAttention", "DeiTAttention"),
    inputs=separate("q_proj", "k_proj", "v_proj"),
    output="o_proj",
    feed_forward=neurons("mlp.fc1", to="mlp.fc2"),
    uniform={"heads": "num_attention_heads", "head_dim": "head_dim"},
    plain=True,
)

CLIP = Family(
    name="CLIP",
    classes=("CLIPAttention",),
    inputs=separate("q_proj", "k_proj", "v_proj"),
    output="out_proj",
    feed_forward=neurons("mlp.fc1", to="mlp.fc2"),
    kind=_kind,
    causal=("text",),
    configs={"text": "text_config", "vision": "vision_config"},
    plain=True,
)
