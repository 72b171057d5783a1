"""The command line: `headcount COMMAND`, one file per command, heavy imports inside."""

from headcount.cli.app import main

__all__ = ["main"]
