"""`headcount demo`: the whole job on real data, offline, with a report at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from headcount.cli.options import command, option
from headcount.demo import STORIES, Story, find_packages


@command()
def demo(
    name: Annotated[Literal["reviews", "translation"], typer.Argument(help="Which demo to run.")] = "reviews",
    quick: Annotated[bool, option("--quick", help="Two minutes instead of ten: less data.")] = False,
    out: Annotated[str | None, option("--out", help="Directory for everything the demo writes.")] = None,
) -> None:
    """Run the whole job, end to end, on real data and offline.

    `reviews` fine-tunes a real pretrained encoder on real film reviews, finds the heads that matter, removes heads
    and neurons until 58% of the arithmetic is saved, tests the result on held-out reviews and measures the speed.
    `translation` trains a small encoder-decoder to translate numbers, and shows which kind of attention it needs most,
    and from which point in training.

    A demo that was stopped resumes where it stopped when you run it again.

    Examples:

      headcount demo

      headcount demo translation --quick --out ./numbers
    """
    about = STORIES[name]
    place = Path(about.directory if out is None else out)
    find_packages(*about.packages)
    typer.echo(f"On two cores this takes {about.takes[quick]}. Everything is written to {place}.")

    from headcount.cli.app import call  # what is slow to import comes after the first line
    from headcount.cli.console import console, progress

    Story(place, console, progress, call).tell(name, quick)
