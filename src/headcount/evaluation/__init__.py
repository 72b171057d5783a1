"""The one engine: what happens when heads are off."""

from headcount.evaluation.outcomes import Mask, Outcomes
from headcount.evaluation.sweep import evaluate

__all__ = ["Mask", "Outcomes", "evaluate"]
