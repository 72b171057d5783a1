"""How important each head is: by every method, one number per head and example."""

from headcount.scoring.gradient import Moments, Residual, head_gradients, unit_moments
from headcount.scoring.methods import METHODS, find_method, importance, refuse_one_class
from headcount.scoring.per_example import frozen
from headcount.scoring.scores import Scores, normalized

__all__ = [
    "METHODS",
    "Moments",
    "Residual",
    "Scores",
    "find_method",
    "frozen",
    "head_gradients",
    "importance",
    "normalized",
    "refuse_one_class",
    "unit_moments",
]
