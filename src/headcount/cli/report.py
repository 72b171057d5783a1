"""`headcount report RUN…`: one page about everything that was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headcount.cli.options import command, option


@command()
def report(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Run directories: what other commands wrote with --out.")
    ],
    out: Annotated[
        str | None, option("--out", "-o", help="The file to write; by default report.html in the first run directory.")
    ] = None,
    figures: Annotated[
        str | None, option("--figures", help="Also write each chart as SVG and PDF into this directory, for a paper.")
    ] = None,
) -> None:
    """Write one self-contained HTML page about one run or several.

    Nothing is computed or fetched. Runs of the same model are shown together; an unfinished run is marked, and shown
    as far as it has numbers.

    Examples:

      headcount report small -o report.html

      headcount report ablation scores curve small speed -o report.html

      headcount report curve --figures paper/figures
    """
    from headcount.reporting import report as write

    first = Path(runs[0])
    file = Path(out) if out is not None else (first if first.is_dir() else first.parent) / "report.html"
    written = write(runs, file, figures)
    typer.echo(f"The report is in {written}. Open it in a browser; it is one file and needs no network.")
    if figures is not None:
        typer.echo(f"Its charts are in {figures}, each as SVG and PDF.")
