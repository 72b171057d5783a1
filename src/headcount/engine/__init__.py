"""Where the work is done: cut into shards, kept in run directories."""

from headcount.engine.local import sweep, sweep_signature
from headcount.engine.rundir import RunDirectory, open_run, read_run

__all__ = ["RunDirectory", "open_run", "read_run", "sweep", "sweep_signature"]
