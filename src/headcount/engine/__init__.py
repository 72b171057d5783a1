"""Where the work is done: cut into shards, here or on many machines, kept in run directories."""

from headcount.engine.engines import Engine, Local, using
from headcount.engine.over_shards import over_shards
from headcount.engine.rundir import RunDirectory, open_run, read_run
from headcount.engine.sweeping import sweep, sweep_signature
from headcount.engine.work import Arrays

__all__ = [
    "Arrays",
    "Engine",
    "Local",
    "RunDirectory",
    "open_run",
    "over_shards",
    "read_run",
    "sweep",
    "sweep_signature",
    "using",
]
