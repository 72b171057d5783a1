"""Pruning by learning: L0 gates on heads (V19 section 6)."""

from headcount.gates.result import Gated, Stage
from headcount.gates.settings import Gating
from headcount.gates.train import train_gates

__all__ = ["Gated", "Gating", "Stage", "train_gates"]
