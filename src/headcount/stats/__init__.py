"""Paired tests, intervals, corrections and correlations, on per-example statistics of all masks at once.

Everywhere, N is the number of examples, S of statistics per example, M of masks and R of resamples. A metric is a
function from summed statistics (..., S) to scores (...), or an object like `tasks.Metric`.
"""

from headcount.stats.bootstrap import SEED, Test, interval, paired_bootstrap, resamples_needed
from headcount.stats.noninferiority import NonInferiority, noninferior
from headcount.stats.tests import Correlation, corrected, correlation, mcnemar_exact, paired_t

__all__ = [
    "SEED",
    "Correlation",
    "NonInferiority",
    "Test",
    "corrected",
    "correlation",
    "interval",
    "mcnemar_exact",
    "noninferior",
    "paired_bootstrap",
    "paired_t",
    "resamples_needed",
]
