"""The one engine: what happens when heads are off."""

from headcount.evaluation.evaluate import FILLS, evaluate, evaluation_signature
from headcount.evaluation.outcomes import Mask, Outcomes

__all__ = ["FILLS", "Mask", "Outcomes", "evaluate", "evaluation_signature"]
