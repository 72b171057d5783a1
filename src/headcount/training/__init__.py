"""Training: a loop that can be repeated to the last bit, a checkpoint that resumes it, and recovery after pruning."""

from headcount.settings import Recovery
from headcount.training.checkpoint import Checkpointer, refuse_misfit, set_weights, weights_of
from headcount.training.loop import Progress, Training, fit, fresh_copy
from headcount.training.recovery import recover

__all__ = [
    "Checkpointer",
    "Progress",
    "Recovery",
    "Training",
    "fit",
    "fresh_copy",
    "recover",
    "refuse_misfit",
    "set_weights",
    "weights_of",
]
