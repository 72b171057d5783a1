"""Pruning by learning: L0 gates on heads (V19 section 6)."""

from headcount.gates.gate_training import Gating
from headcount.gates.gated import Gated, Stage
from headcount.gates.stages import fresh_copy, hold_out, train_gates

__all__ = [
    "Gated",
    "Gating",
    "Stage",
    "fresh_copy",
    "hold_out",
    "train_gates",
]
