"""`track`: when in training does it become clear which heads matter? (M19 section 6, figure 5)"""

from headcount.dynamics.checkpoints import in_order, refuse_different
from headcount.dynamics.result import Dynamics
from headcount.dynamics.snapshot import Snapshot, Step
from headcount.dynamics.tracking import track

__all__ = ["Dynamics", "Snapshot", "Step", "in_order", "refuse_different", "track"]
