"""What a task must know of a model to see whether they fit together."""

from __future__ import annotations

from typing import Any


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
