"""Pruning by learning: L0 gates on heads (V19 section 6)."""

from headcount.gates.gate_training import Gating
from headcount.gates.gated import Gated, GateStage
from headcount.gates.stages import fresh_copy, train_gates

__all__ = [
    "GateStage",
    "Gated",
    "Gating",
    "fresh_copy",
    "train_gates",
]
