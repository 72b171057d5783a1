"""`headcount importance MODEL --data …`: score every head, by M19's gradient or another method."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from headcount.cli.options import Setup, command, option

# The closed sets of the library, which is slow to import; a test keeps them the same.
Method = Literal["gradient", "fisher", "oracle", "confidence", "relevance", "random"]
Per = Literal["example", "token", "batch"]
Exclude = Literal["end", "special", "none"]


def register(app: typer.Typer) -> None:
    command(app, "importance", sharded=True)(importance)


def importance(
    setup: Setup,
    data: Annotated[str, option("--data", help="Data to score heads on, such as training data.")],
    method: Annotated[Method, option("--method", help="How heads are scored.")] = "gradient",
    per: Annotated[Per, option("--per", help="gradient: take the absolute value for each of these.")] = "example",
    exclude: Annotated[Exclude, option("--exclude", help="confidence: tokens to leave out.")] = "end",
) -> None:
    """Score the importance of every head; higher is more important (M19, section 4.1; V19, section 4).

    Examples:

      headcount importance ./model --data train.tsv --limit 1000 --out run

      headcount importance ./translator --data train.en --target-data train.fr --method relevance --json
    """
    from headcount.cli.command_run import run_of
    from headcount.cli.console import print_json, progress
    from headcount.scoring import importance as score

    options = method_options(method, per, setup.seed, exclude)
    model, tokenizer = setup.load_model()
    task = setup.load_task(data, tokenizer, model)
    with run_of(setup, "importance", model, [task], method=method, options=dict(options)) as run:
        with progress(f"scoring by {method}") as bar:
            scores = score(model, task, method, run=run.directory, progress=bar, **options)
        if setup.out is not None:
            scores.save(run.directory.path / "scores.json")
        result = run.finish({"model": setup.model, **task.metric.facts(), "n": len(task), **_json(scores)})
    print_json(result) if setup.as_json else _print(result, scores)


def method_options(method: str, per: str, seed: int, exclude: str = "end") -> dict[str, Any]:
    """The options of the command line that this method takes."""
    if per != "example" and method != "gradient":
        raise typer.BadParameter(f"--per {per} is for --method gradient")
    if exclude != "end" and method != "confidence":
        raise typer.BadParameter(f"--exclude {exclude} is for --method confidence")
    options: dict[str, dict[str, Any]] = {
        "gradient": {"per": per}, "random": {"seed": seed}, "confidence": {"exclude": exclude},
    }  # fmt: skip
    return options.get(method, {})


def _json(scores: Any) -> dict[str, Any]:
    low, high = scores.intervals()
    settled = scores.convergence()
    heads = [
        {"head": str(head), "score": float(raw), "normalized": share, "low": float(one), "high": float(other)}
        for (head, share), raw, one, other in zip(scores.normalized().items(), scores.raw, low, high, strict=True)
    ]
    return {
        "method": scores.method,
        "order_by": "normalized" if scores.normalize else "score",
        "heads": heads,
        "order": [str(head) for head in scores.order()],
        "convergence": vars(settled),
    }


def _print(result: dict[str, Any], scores: Any) -> None:
    from headcount.cli.console import console, make_table

    title = f"{result['model']}, {scores.method} on {result['n']} examples"
    table = make_table(title, "head", "score", "95% interval", "normalized")
    by_name = {row["head"]: row for row in result["heads"]}
    for name in reversed(result["order"]):
        row = by_name[name]
        interval = f"{row['low']:.4g} {row['high']:.4g}"
        table.add_row(name, f"{row['score']:.4g}", interval, f"{row['normalized']:.3f}")
    console.print(table)
    console.print(f"Most important first, by the {'normalized ' if scores.normalize else ''}score.")
    settled = result["convergence"]
    if settled["stable_at"] is not None:
        console.print(
            f"The order is stable: two estimates from {settled['stable_at']} examples each agree (Spearman r "
            f"{settled['target']:g} or more)."
        )
    elif settled["sizes"]:
        console.print(
            f"The order is not stable yet: two estimates from {settled['sizes'][-1]} examples each agree with "
            f"Spearman r {settled['agreement'][-1]:.2f}; more data would help."
        )
