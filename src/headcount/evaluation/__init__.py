"""The one engine: what happens when heads are off."""

from headcount.evaluation.mean_outputs import mean_contexts
from headcount.evaluation.outcomes import Mask, Outcomes
from headcount.evaluation.sweep import FILLS, evaluate, evaluate_until_decided, make_plan, measure

__all__ = ["FILLS", "Mask", "Outcomes", "evaluate", "evaluate_until_decided", "make_plan", "mean_contexts", "measure"]
