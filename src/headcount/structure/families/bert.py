"""BERT and the models built like it, whose attention returns contexts that its parent projects; also DeBERTa-v2."""

from headcount.structure.families import Family, Part, neurons, separate
from headcount.structure.transformers_internals import EmptiedContext

BERT = Family(
    name="BERT",
    classes=tuple(
        f"{name}{kind}Attention"
        for name in ("Bert", "Roberta", "XLMRoberta", "Camembert", "Electra")
        for kind in ("Self", "Cross")
    ),
    inputs=separate("query", "key", "value"),
    output="^.output.dense",
    head_dim="attention_head_size",
    feed_forward=neurons("intermediate.dense", to="output.dense"),
    cross=("crossattention",),
    emptied=EmptiedContext,
    padded_positions=True,  # RoBERTa's
    plain=True,
)

DISTILBERT = Family(
    name="DistilBERT",
    classes=("DistilBertSelfAttention",),
    inputs=separate("q_lin", "k_lin", "v_lin"),
    output="out_lin",
    head_dim="attention_head_size",
    feed_forward=neurons("ffn.lin1", to="ffn.lin2", uniform="hidden_dim"),
    plain=True,
)


# Positions have projections of their own, and there is no attention interface.
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
