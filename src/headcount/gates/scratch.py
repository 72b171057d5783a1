"""The same sparse layout with fresh weights, for V19's comparison: was it the layout, or the training before?"""

from __future__ import annotations

import copy
from typing import Any

import torch

from headcount.errors import HeadcountError


def fresh_copy(model: Any, seed: int = 0) -> Any:
    """A model of the same layout, its heads gone as they are, with weights as at the beginning of a training.

    >>> from transformers import BertConfig, BertModel
    >>> small = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8))
    >>> fresh = fresh_copy(small)
    >>> bool((fresh.embeddings.word_embeddings.weight == small.embeddings.word_embeddings.weight).all())
    False
    """
    if not hasattr(model, "init_weights"):
        raise HeadcountError(f"{type(model).__name__} cannot say how its weights begin: it is no transformers model")
    fresh = copy.deepcopy(model)
    for module in fresh.modules():
        module._is_hf_initialized = False
        for parameter in module.parameters(recurse=False):
            parameter._is_hf_initialized = False  # type: ignore[attr-defined]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh.initialize_weights()
        if hasattr(fresh, "tie_weights"):
            fresh.tie_weights()
    return fresh
