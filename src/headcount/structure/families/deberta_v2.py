"""DeBERTa-v2 and v3: positions have projections of their own, and there is no attention interface."""

from headcount.structure.families import Family, Part, neurons, separate
from headcount.structure.transformers_internals import EmptiedContext

DEBERTA_V2 = Family(
    name="DeBERTa-v2",
    classes=("DisentangledSelfAttention",),
    inputs=(
        *separate("query_proj", "key_proj", "value_proj"),
        Part("pos_key_proj", optional=True),
        Part("pos_query_proj", optional=True),
    ),
    output="^.output.dense",
    head_dim="attention_head_size",
    feed_forward=neurons("intermediate.dense", to="output.dense"),
    kind="encoder",
    emptied=EmptiedContext,
    returns_weights=True,
)
