"""The one engine: what happens when heads are off."""

from headcount.evaluate.outcomes import Mask, Outcomes
from headcount.evaluate.run import evaluate

__all__ = ["Mask", "Outcomes", "evaluate"]
