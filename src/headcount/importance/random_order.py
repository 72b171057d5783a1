"""The order that knows nothing: what any other has to beat."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from headcount.anatomy import anatomy


def random_order(model: nn.Module, task: Any = None, *, seed: int = 0) -> np.ndarray:
    """A uniform number per head, (1, heads): the same seed gives the same order.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4))
    >>> random_order(model, seed=1).shape
    (1, 8)
    """
    return np.random.default_rng(seed).random((1, len(anatomy(model).heads)))
