"""Every family headcount knows by name; add one here (CONTRIBUTING shows how)."""

from headcount.structure.families import (
    albert,
    bart,
    bert,
    bloom,
    clip,
    deberta_v2,
    distilbert,
    gpt2,
    gpt_neox,
    llama,
    mpnet,
    phi3,
    t5,
    vit,
)

FAMILIES = tuple(
    module.FAMILY
    for module in (
        albert, bart, bert, bloom, clip, deberta_v2, distilbert, gpt2, gpt_neox, llama, mpnet, phi3, t5, vit,
    )
)  # fmt: skip
