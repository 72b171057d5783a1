"""DistilBERT."""

from headcount.structure.family import Family, separate

FAMILY = Family(
    name="DistilBERT",
    classes=("DistilBertSelfAttention",),
    inputs=separate("q_lin", "k_lin", "v_lin"),
    output="out_lin",
    head_dim="attention_head_size",
    plain=True,
)
