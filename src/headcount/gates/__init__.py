"""Pruning by learning: L0 gates on heads (V19 section 6), neurons and whole sublayers (CoFi)."""

from headcount.gates.gate_training import Gating
from headcount.gates.gated import Gated, GateStage
from headcount.gates.pipeline import plan_stages, train_gates

__all__ = [
    "GateStage",
    "Gated",
    "Gating",
    "plan_stages",
    "train_gates",
]
