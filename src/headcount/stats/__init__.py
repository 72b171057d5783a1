"""Paired tests, intervals, corrections and correlations, on per-example statistics of all masks at once.

Everywhere, N is the number of examples, S of statistics per example, M of masks and R of resamples. A metric is a
function from summed statistics (..., S) to scores (...), or an object like `tasks.Metric`.
"""

from headcount.stats.intervals import SEED, change_bounds, interval, paired_bounds, resamples_needed, unseen_share
from headcount.stats.paired_tests import (
    MCNEMAR,
    Correlation,
    Effects,
    NonInferiority,
    Test,
    about,
    at_most,
    corrected,
    correlation,
    mcnemar_exact,
    noninferior,
    paired_effects,
    paired_t,
    paired_test,
)
from headcount.stats.sequential import Deciding, foreseen, planned_looks, sequential_bounds

__all__ = [
    "MCNEMAR",
    "SEED",
    "Correlation",
    "Deciding",
    "Effects",
    "NonInferiority",
    "Test",
    "about",
    "at_most",
    "change_bounds",
    "corrected",
    "correlation",
    "foreseen",
    "interval",
    "mcnemar_exact",
    "noninferior",
    "paired_bounds",
    "paired_effects",
    "paired_t",
    "paired_test",
    "planned_looks",
    "resamples_needed",
    "sequential_bounds",
    "unseen_share",
]
