"""Gates on heads: pruning by learning (V19 section 6; CoFi), and what heads do (Causal Head Gating)."""

from headcount.gates.gated import CausalGates, Gated, GateStage
from headcount.gates.pipeline import causal_gates, plan_stages, train_gates
from headcount.settings import Gating

__all__ = [
    "CausalGates",
    "GateStage",
    "Gated",
    "Gating",
    "causal_gates",
    "plan_stages",
    "train_gates",
]
