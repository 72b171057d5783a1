"""See heads at work: what a page asks of a model, served live or put into one file.

`inspector` asks the model and `readings` says what one text means for each kind of model. `server` answers the live
page, `static_view` precomputes everything; `findings` and `examples` add what runs and data have to say.
"""

from headcount.explore.examples import read_examples
from headcount.explore.findings import Findings
from headcount.explore.inspector import Inspector
from headcount.explore.server import LOOPBACK, Answers, ExploreServer
from headcount.explore.static_view import View, view

__all__ = ["LOOPBACK", "Answers", "ExploreServer", "Findings", "Inspector", "View", "read_examples", "view"]
