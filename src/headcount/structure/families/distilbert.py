"""DistilBERT."""

from headcount.structure.family_declaration import Family, neurons, separate

FAMILY = Family(
    name="DistilBERT",
    classes=("DistilBertSelfAttention",),
    inputs=separate("q_lin", "k_lin", "v_lin"),
    output="out_lin",
    head_dim="attention_head_size",
    feed_forward=neurons("ffn.lin1", to="ffn.lin2", uniform="hidden_dim"),
    plain=True,
)
