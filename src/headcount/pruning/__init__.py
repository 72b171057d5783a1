"""Pruning: curves, the search for the largest cut within a budget, and what makes up for the heads that went."""

from headcount.pruning.compensation import HOW, compensate
from headcount.pruning.curve import Curve, counts, of_kinds, pruning_curve
from headcount.pruning.forecasting import forecast
from headcount.pruning.pipeline import prune
from headcount.pruning.pruned import Pruned
from headcount.pruning.search import SEARCHES
from headcount.pruning.settings import Target, share_or_number
from headcount.pruning.splits import refuse_headless, refuse_overlap

__all__ = [
    "HOW",
    "SEARCHES",
    "Curve",
    "Pruned",
    "Target",
    "compensate",
    "counts",
    "forecast",
    "of_kinds",
    "prune",
    "pruning_curve",
    "refuse_headless",
    "refuse_overlap",
    "share_or_number",
]
