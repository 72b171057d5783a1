"""One HTML page about what was measured; it reads results and never computes.

`page` is the report from top to bottom and names its sections: `headline`, `heads` (effect, importance, role),
`ablation` (one head per layer, other data), `pruning` (curves, search, gates, layers), `speed`, `dynamics` (checkpoints
of one training). They read `runs`, write `numbers`, and draw with `charts`, `layer_maps` and `markup`.
"""

from headcount.reporting.charts import WIDTH, Axes, drawing, padded_range, scatter_svg, standalone, text_at
from headcount.reporting.markup import Markup, join, tag
from headcount.reporting.page import report

__all__ = [
    "WIDTH",
    "Axes",
    "Markup",
    "drawing",
    "join",
    "padded_range",
    "report",
    "scatter_svg",
    "standalone",
    "tag",
    "text_at",
]
