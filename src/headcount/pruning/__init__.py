"""Pruning: curves, the search for the largest cut within a budget, and what makes up for the heads that went."""

from headcount.pruning.compensate import compensate
from headcount.pruning.curve import Curve, pruning_curve
from headcount.pruning.prune import prune
from headcount.pruning.recover import Recovery, recover
from headcount.pruning.result import Pruned
from headcount.pruning.search import SEARCHES

__all__ = ["SEARCHES", "Curve", "Pruned", "Recovery", "compensate", "prune", "pruning_curve", "recover"]
