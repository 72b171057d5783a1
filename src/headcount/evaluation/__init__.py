"""The one engine: what happens when heads are off."""

from headcount.evaluation.mean_outputs import mean_contexts
from headcount.evaluation.outcomes import Mask, Outcomes
from headcount.evaluation.replay import answer_at
from headcount.evaluation.sweep import FILLS, evaluate, make_plan, measure

__all__ = ["FILLS", "Mask", "Outcomes", "answer_at", "evaluate", "make_plan", "mean_contexts", "measure"]
