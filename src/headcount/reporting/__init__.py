"""One HTML page about what was measured; it reads results and never computes.

`page` is the report from top to bottom and names its sections: `headline`, `heads` (effect, importance, role, one head
per layer, other data), `pruning` (curves, search, layers), `speed`, `training` (gates, checkpoints). They read `runs`,
write `numbers`, and draw with `charts`, `layer_maps` and `markup`. `page` also has heads at work on a text: the page of
`headcount explore` and `headcount view`; and `Shown`, by which results show themselves. `plots` draws on paper.
"""

from headcount.reporting.charts import WIDTH, Axes, drawing, padded_range, scatter_svg, standalone, text_at
from headcount.reporting.markup import Markup, join, tag, write_page
from headcount.reporting.numbers import number
from headcount.reporting.page import Shown, explorer_page, explorer_policy, report
from headcount.reporting.runs import ModelRuns, RunRecord
from headcount.reporting.runs import read as read_result

__all__ = [
    "WIDTH",
    "Axes",
    "Markup",
    "ModelRuns",
    "RunRecord",
    "Shown",
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
