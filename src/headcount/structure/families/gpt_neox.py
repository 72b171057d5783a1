"""GPT-NeoX: query, key and value of a head lie side by side in one projection."""

from headcount.structure.family_declaration import Family, Part, neurons

FAMILY = Family(
    name="GPT-NeoX",
    classes=("GPTNeoXAttention",),
    inputs=(Part("query_key_value", ("qkv",)),),
    output="dense",
    head_dim="head_size",
    feed_forward=neurons("mlp.dense_h_to_4h", to="mlp.dense_4h_to_h"),
)
