"""The one engine: what happens when heads are off."""

from headcount.evaluation.mean_outputs import mean_contexts
from headcount.evaluation.outcomes import Mask, Outcomes
from headcount.evaluation.sweep import FILLS, evaluate

__all__ = ["FILLS", "Mask", "Outcomes", "evaluate", "mean_contexts"]
