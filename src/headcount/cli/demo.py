"""`headcount demo`: see it work on a model that it makes itself."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(out: str = typer.Option("demo-run", "--out", help="Directory for what the demo makes.")) -> None:
    """Make a small model, look at its heads, mask some, really remove them, save, load and compare.

    Example:

      headcount demo --out ./demo-run
    """
    from headcount.demo.walkthrough import walk_through

    walk_through(out)
