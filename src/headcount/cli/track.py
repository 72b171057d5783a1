"""`headcount track CKPT… --score-data TRAIN --data DEV`: when in training do heads become important?"""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from headcount.cli.options import Setup, command, usage
from headcount.cli.prune import OverlapOption
from headcount.errors import counted


def register(app: typer.Typer) -> None:
    command(app, "track", sharded=True)(track)


def track(
    setup: Setup,
    model: Annotated[list[str], typer.Argument(metavar="CKPT...", help="Checkpoints of one training run.")],
    score_data: Annotated[str, typer.Option("--score-data", help="Data to score heads on.")],
    data: Annotated[str, typer.Option("--data", help="Other data, to evaluate the pruned checkpoints on.")],
    score_target_data: Annotated[
        str | None, typer.Option("--score-target-data", help="Targets of --score-data.")
    ] = None,
    step: Annotated[float, typer.Option("--step", help="A share of the heads (0.1), or a number of them.")] = 0.1,
    orders: Annotated[int, typer.Option("--orders", min=1, help="How many random orders are averaged.")] = 3,
    overlap: OverlapOption = "refuse",
) -> None:
    """Score and prune every checkpoint, by importance and in random order (M19, section 6).

    Checkpoints in one directory are sorted by their numbers: epoch-2 comes before epoch-10.

    Examples:

      headcount track run/checkpoints/epoch-* --score-data train.tsv --data dev.tsv --out tracked

      headcount track run/epoch-1 run/epoch-5 run --score-data train.en --score-target-data train.fr
      --data val.en --target-data val.fr --limit 200 --step 0.2 --json
    """
    from headcount import dynamics
    from headcount.cli.command_run import run_of
    from headcount.cli.console import messages, print_json, progress
    from headcount.cli.model_loading import load_model
    from headcount.pruning import counts, resolve_overlap

    with usage():
        counts(1, step)
    paths = dynamics.in_order(model)
    dynamics.refuse_different(paths)
    setup.model = paths[-1]
    last, tokenizer = setup.load_model()
    scoring = setup.load_other(score_data, tokenizer, last, score_target_data, "--score-target-data")
    task = setup.load_task(data, tokenizer, last)
    task, remarks = resolve_overlap(scoring.keys(), task, "the score data", overlap)
    settings = {"checkpoints": paths, "step": step, "orders": orders, "overlap": overlap}
    with run_of(setup, "track", last, [scoring, task], **settings) as run, progress("tracking") as bar:
        found = dynamics.track(
            paths, task, scoring, step=step, orders=orders, seed=setup.seed, overlap=overlap,
            run=run.directory, loading=lambda path: load_model(path, setup.device, setup.dtype)[0], progress=bar,
        )  # fmt: skip
        names = {"model": paths[-1], **task.metric.facts(), "n": len(task), "n_score": len(scoring)}
        result = run.finish({**names, **found.to_json(), "remarks": remarks})
    for remark in remarks:
        messages.print(remark, style="dim", markup=False)
    print_json(result) if setup.as_json else _print(result, task.metric)


def _print(result: dict[str, Any], metric: Any) -> None:
    from headcount.cli.console import console, number, print_table

    title = f"{result['model']}: percent of each checkpoint's own {metric.name}, {counted(result['n'], 'example')}"
    columns = [f"{one['name']}\n{number(one['base'], metric)}" for one in result["checkpoints"]]
    rows = []
    for share in dict.fromkeys(point["pruned"] for point in result["checkpoints"][0]["points"]):
        cells = []
        for one in result["checkpoints"]:
            here = {point["method"]: point for point in one["points"] if point["pruned"] == share}
            cells.append(" / ".join(_known(100 * here[method]["relative"], ".0f") for method in ("gradient", "random")))
        rows.append([f"{share:.0%}", *cells])
    rows.append(["advantage", *(_known(one["advantage"], "+.2f") for one in result["checkpoints"])])
    if len(result["checkpoints"]) > 1:
        rows.append(["r with last", *(f"{r:.2f}" for r in (*result["with_last"], 1.0))])
    print_table(title, ["heads removed", *columns], rows, left=0)
    console.print("Heads removed by importance / in random order. " + result["in_words"], soft_wrap=True)


def _known(value: float, form: str) -> str:
    """A number, or a dash: of a checkpoint that scores 0, no share can be taken."""
    return "\u2013" if math.isnan(value) else f"{value:{form}}"
