"""M19's ablations with honest statistics: one head off, all but one off, and the same on other data."""

from headcount.ablation.alone import AllButOne, LayerResult, ablate_all_but_one
from headcount.ablation.comparison import Comparison, compare
from headcount.ablation.each import Ablation, ablate_each
from headcount.ablation.effects import Effects, effects_of

__all__ = [
    "Ablation",
    "AllButOne",
    "Comparison",
    "Effects",
    "LayerResult",
    "ablate_all_but_one",
    "ablate_each",
    "compare",
    "effects_of",
]
