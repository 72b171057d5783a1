"""BERT and the models built like it: the attention class returns contexts, its parent's `output` projects them."""

from headcount.structure.family_declaration import Family, neurons, separate
from headcount.structure.transformers_internals import EmptiedContext

FAMILY = Family(
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
