"""How much each head matters: one number per head and example, whatever the method."""

from headcount.importance.compute import importance
from headcount.importance.methods import METHODS
from headcount.importance.scores import Scores

__all__ = ["METHODS", "Scores", "importance"]
