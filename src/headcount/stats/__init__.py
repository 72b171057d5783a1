"""Paired tests, intervals, corrections and correlations, on per-example statistics of all masks at once.

Everywhere: N examples, S statistics of an example, M masks, R resamples; a metric is a function that turns
summed statistics (..., S) into scores (...)."""

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
