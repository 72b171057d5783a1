""""""

from headcount.training.loop import (
    Training,
    optimizer_tensors,
    read_tensors,
    set_optimizer,
    set_weights,
    under,
    weights_of,
    write_tensors,
)
from headcount.training.recovery import Recovery, recover

__all__ = [
    "Recovery",
    "Training",
    "optimizer_tensors",
    "read_tensors",
    "recover",
    "set_optimizer",
    "set_weights",
    "under",
    "weights_of",
    "write_tensors",
]
