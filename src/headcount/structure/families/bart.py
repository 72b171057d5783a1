"""BART and the models built like it, encoder, decoder and cross-attention alike."""

from headcount.structure.families import Family, neurons, separate

BART = Family(
    name="BART",
    classes=tuple(f"{name}Attention" for name in ("Bart", "MBart", "Marian", "M2M100", "Pegasus", "Whisper", "OPT")),
    inputs=separate("q_proj", "k_proj", "v_proj"),
    output="out_proj",
    feed_forward=neurons("fc1", to="fc2", uniform="ffn_dim"),
    cross=("encoder_attn",),
)
