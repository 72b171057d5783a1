"""`headcount compare MODEL --data A --against B`: do the same heads matter on other data?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headcount.cli.options import Data, Fill, Setup, command, option


def register(app: typer.Typer) -> None:
    command(app, "compare", sharded=True)(compare)


def compare(
    setup: Setup,
    data: Data,
    against: Annotated[str, option("--against", help="The other data set.")],
    against_target_data: Annotated[str | None, option("--against-target-data", help="Targets of --against.")] = None,
    fill: Fill = "zero",
) -> None:
    """Ablate every head on two data sets, and correlate the effects (M19, figure 2).

    Examples:

      headcount compare ./cola-model --data in_domain_dev.tsv --against out_of_domain_dev.tsv --metric matthews

      headcount compare ./translator --data news.en --target-data news.fr --against talks.en
      --against-target-data talks.fr --out run
    """
    from headcount import ablation
    from headcount.cli.command_run import run_of
    from headcount.cli.console import print_json, progress
    from headcount.files import write_whole
    from headcount.reporting import scatter_svg

    model, tokenizer = setup.load_model()
    task = setup.load_task(data, tokenizer, model)
    other = setup.load_other(against, tokenizer, model, against_target_data, "--against-target-data")
    with run_of(setup, "compare", model, [task, other], fill=fill) as run:
        with progress("comparing") as bar:
            both = ablation.compare(model, task, other, run=run.directory, progress=bar, fill=fill)
        result = run.finish({"model": setup.model, **both.to_json()})
        if setup.out is not None:
            points = [(row["head"], row["change"], row["change_against"]) for row in result["heads"]]
            caption = f"{task.metric.name}, Pearson r {result['pearson']:.2f}"
            digits = 2 if task.metric.points >= 1 and not task.metric.relative else 4
            picture = scatter_svg(points, Path(data).name, Path(against).name, caption, digits)
            write_whole(Path(setup.out) / "scatter.svg", picture.encode())
    print_json(result) if setup.as_json else _print(result, task.metric, setup.out)


def _print(result: dict[str, Any], metric: Any, out: str | None) -> None:
    """The effects on both data sets, the largest first, and how they correlate."""
    from headcount.cli.console import console, make_table, signed

    rows = sorted(result["heads"], key=lambda row: -abs(row["change"]))
    title = f"{result['model']}, {result['metric']} {result['base']:.4g}, {result['n']} examples"
    table = make_table(title, "head", "change", "change on the other data")
    for row in rows:
        table.add_row(row["head"], signed(row["change"], metric), signed(row["change_against"], metric))
    console.print(table)
    console.print(
        result["remark"]
        or f"Pearson r {result['pearson']:.2f} (p {result['p']:.2g}), "
        f"Spearman r {result['spearman']:.2f} (p {result['spearman_p']:.2g}) over {len(rows)} heads."
    )
    if out is not None:
        console.print(f"The scatter plot is in {Path(out) / 'scatter.svg'}.", soft_wrap=True)
