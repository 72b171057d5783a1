"""Pruning: curves, the search for the largest cut within a budget, and compensation for the removed heads."""

from headcount.pruning.compensation import compensate
from headcount.pruning.curve import Curve, Curves, Point, pruning_curve
from headcount.pruning.model_comparison import ModelComparison, compare_models
from headcount.pruning.pipeline import forecast, prune
from headcount.pruning.pruned import Pruned, before_and_after, how_to_load, pruning_facts
from headcount.pruning.splits import hold_out, refuse_headless, resolve_overlap, split_data
from headcount.pruning.unit_costs import saved_by_unit
from headcount.settings import Pruning

__all__ = [
    "Curve",
    "Curves",
    "ModelComparison",
    "Point",
    "Pruned",
    "Pruning",
    "before_and_after",
    "compare_models",
    "compensate",
    "forecast",
    "hold_out",
    "how_to_load",
    "prune",
    "pruning_curve",
    "pruning_facts",
    "refuse_headless",
    "resolve_overlap",
    "saved_by_unit",
    "split_data",
]
