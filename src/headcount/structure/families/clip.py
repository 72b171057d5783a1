"""CLIP: two encoders, named by what they read."""

from typing import Any

from headcount.structure.families import Family, neurons, separate


def _kind(module: Any) -> str:
    return "text" if "Text" in type(module.config).__name__ else "vision"


FAMILY = Family(
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
