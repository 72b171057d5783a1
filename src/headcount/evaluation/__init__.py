"""The one engine: what happens when heads are off."""

from headcount.evaluation.adaptive import Adaptive, evaluate_until_decided
from headcount.evaluation.fills import DRAWS, FILLS, mean_contexts
from headcount.evaluation.outcomes import Mask, Outcomes
from headcount.evaluation.replay import answer_at, head_parts
from headcount.evaluation.sweep import evaluate, make_plan, measure

__all__ = [
    "DRAWS",
    "FILLS",
    "Adaptive",
    "Mask",
    "Outcomes",
    "answer_at",
    "evaluate",
    "evaluate_until_decided",
    "head_parts",
    "make_plan",
    "mean_contexts",
    "measure",
]
