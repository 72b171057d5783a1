"""Pruning: curves, the search for the largest cut within a budget, and what makes up for the heads that went."""

from headcount.pruning.compensate import compensate
from headcount.pruning.curve import Curve, pruning_curve

__all__ = ["Curve", "compensate", "pruning_curve"]
