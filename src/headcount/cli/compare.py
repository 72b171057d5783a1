"""`headcount compare MODEL --data A --against B`: do the same heads matter on other data?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headcount.cli.setup import Setup, command


def register(app: typer.Typer) -> None:
    command(app, "compare", sharded=True)(compare)


def compare(
    setup: Setup,
    data: Annotated[str, typer.Option("--data", help="csv, tsv, jsonl, parquet or text file, or hub id.")],
    against: Annotated[str, typer.Option("--against", help="The other data set.")],
    against_target_data: Annotated[str | None, typer.Option("--against-target-data", help="Its targets.")] = None,
    fill: Annotated[str, typer.Option("--fill", help="A silent head puts out zero, or its mean output.")] = "zero",
) -> None:
    """Ablate every head on two data sets, and correlate the effects (M19, figure 2).

    Example:

      headcount compare ./cola-model --data in_domain_dev.tsv --against out_of_domain_dev.tsv --metric matthews
    """
    from pathlib import Path

    from headcount import ablation
    from headcount.cli.console import compare_table, console, print_json, progress
    from headcount.cli.loading import run_of
    from headcount.files import write_whole
    from headcount.reporting import scatter_svg

    model, tokenizer = setup.load_model()
    task = setup.load_task(data, tokenizer, model)
    other = setup.load_other(against, tokenizer, model, against_target_data, "--against-target-data")
    with run_of(setup, "compare", model, [task, other], fill=fill) as run:
        with progress("comparing") as bar:
            both = ablation.compare(model, task, other, run=run.directory, progress=bar, fill=fill)
        result: dict[str, Any] = run.finish({"model": setup.model, **both.to_json()})
        if setup.out is not None:
            points = [(row["head"], row["change"], row["change_against"]) for row in result["heads"]]
            caption = f"{task.metric.name}, Pearson r {result['pearson']:.2f}"
            digits = 2 if task.metric.points >= 1 and not task.metric.relative else 4
            picture = scatter_svg(points, Path(data).name, Path(against).name, caption, digits)
            write_whole(Path(setup.out) / "scatter.svg", picture.encode())
    print_json(result) if setup.as_json else compare_table(result, task.metric)()
    if setup.out is not None and not setup.as_json:
        console.print(f"The scatter is in {Path(setup.out) / 'scatter.svg'}.", soft_wrap=True)
