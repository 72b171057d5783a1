"""Pictures of results; they read what was measured and never compute."""

from headcount.report.scatter import scatter_svg

__all__ = ["scatter_svg"]
