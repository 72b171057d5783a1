"""Training: a loop that can be repeated to the last bit, a checkpoint that resumes it, and recovery after pruning."""

from headcount.training.checkpoint import Checkpointer, refuse_misfit, set_weights, weights_of
from headcount.training.loop import Progress, Training, fit, fresh_copy, refuse_settings
from headcount.training.recovery import Recovery, recover

__all__ = [
    "Checkpointer",
    "Progress",
    "Recovery",
    "Training",
    "fit",
    "fresh_copy",
    "recover",
    "refuse_misfit",
    "refuse_settings",
    "set_weights",
    "weights_of",
]
