"""One HTML page about what was measured; it reads results and never computes.

`page` is the report from top to bottom and names its sections: `headline`, `heads` (effect, importance, role),
`ablation` (one head per layer, other data), `pruning` (curves, search, gates, layers), `speed`, `dynamics` (checkpoints
of one training), `explorer` (heads at work on a text). They read `runs`, write `numbers`, and draw with `charts`,
`layer_maps` and `markup`. `explorer` is also the page of `headcount explore` and `headcount view`.
"""

from headcount.reporting.charts import WIDTH, Axes, drawing, padded_range, scatter_svg, standalone, text_at
from headcount.reporting.explorer import explorer_page, explorer_policy
from headcount.reporting.markup import Markup, join, tag, write_page
from headcount.reporting.numbers import number
from headcount.reporting.page import report
from headcount.reporting.runs import ModelRuns, RunRecord
from headcount.reporting.runs import read as read_result

__all__ = [
    "WIDTH",
    "Axes",
    "Markup",
    "ModelRuns",
    "RunRecord",
    "drawing",
    "explorer_page",
    "explorer_policy",
    "join",
    "number",
    "padded_range",
    "read_result",
    "report",
    "scatter_svg",
    "standalone",
    "tag",
    "text_at",
    "write_page",
]
