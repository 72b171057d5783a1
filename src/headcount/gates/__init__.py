"""Pruning by learning: L0 gates on heads (V19 section 6), neurons and whole sublayers (CoFi)."""

from headcount.gates.gate_training import Gating
from headcount.gates.pipeline import train_gates
from headcount.gates.result import Gated, GateStage

__all__ = [
    "GateStage",
    "Gated",
    "Gating",
    "train_gates",
]
