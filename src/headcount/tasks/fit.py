"""What a task must know of a model to see whether they fit together."""

from __future__ import annotations

import inspect
from typing import Any

from transformers.models.auto import modeling_auto

KINDS = {
    "classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "translation": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
}


def embedding_rows(model: Any) -> int | None:
    """How many token ids the model has embeddings for; None where it has no such thing."""
    try:
        return model.get_input_embeddings().weight.shape[0]
    except (AttributeError, NotImplementedError):
        return None


def positions(model: Any) -> int | None:
    """How many tokens the model can read at once; None where nothing limits it (relative positions)."""
    for name, module in model.named_modules():
        # RoBERTa and its kin count positions from the padding index on.
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return module.num_embeddings - module.padding_idx - 1
    if model.config.model_type in ("t5", "mt5", "umt5", "longt5", "switch_transformers", "bloom", "mpt"):
        return None
    limit = getattr(model.config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def output_rows(model: Any) -> int | None:
    """How many token ids the model can produce."""
    head = model.get_output_embeddings()
    return None if head is None else head.weight.shape[0]


def without_cache(model: Any) -> dict[str, bool]:
    """The argument that spares a model keeping keys and values that nobody will read."""
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}


def kind_of(model: Any) -> str | None:
    """What a model's class is for: "classification", "translation", "causal", "masked", or None.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> kind_of(GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=4, vocab_size=8)))
    'causal'
    """
    names = {cls.__name__ for cls in type(model).__mro__}  # a user's subclass is what it inherits from
    for kind, known in KINDS.items():
        if names & set(known.values()):
            return kind
    return None
