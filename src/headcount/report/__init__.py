"""Reports and pictures of results; they read what was measured and never compute."""

from headcount.report.build import report
from headcount.report.scatter import scatter_svg

__all__ = ["report", "scatter_svg"]
