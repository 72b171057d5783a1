"""`headcount importance MODEL --data …`: score heads, neurons or sublayers, by M19's gradient or another method."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from headcount.cli.options import Setup, command, option, usage
from headcount.errors import counted
from headcount.heads import asked_units

# The closed sets of the library, which is slow to import; a test keeps them the same.
Method = Literal["gradient", "fisher", "oracle", "confidence", "relevance", "random"]
Per = Literal["example", "token", "batch"]
Exclude = Literal["end", "special", "none"]
NEAR_ZERO = 0.01  # of the mean score of all neurons


@command(sharded=True)
def importance(
    setup: Setup,
    data: Annotated[str, option("--data", help="Data to score heads on, such as training data.")],
    method: Annotated[Method, option("--method", help="How heads are scored.")] = "gradient",
    units: Annotated[str, option("--units", help="What is scored: heads, neurons, sublayers, or several.")] = "heads",
    per: Annotated[Per, option("--per", help="gradient: take the absolute value for each of these.")] = "example",
    exclude: Annotated[Exclude, option("--exclude", help="confidence: tokens to leave out.")] = "end",
    group: Annotated[int | None, option("--group", min=1, help="oracle: neurons to ablate together.")] = None,
) -> None:
    """Score the importance of every head; higher is more important (M19, section 4.1; V19, section 4).

    With --units, score the neurons of feed-forward layers or whole sublayers as well.

    Examples:

      headcount importance ./model --data train.tsv --limit 1000 --out run

      headcount importance ./model --data train.tsv --units neurons,sublayers --method fisher

      headcount importance ./translator --data train.en --target-data train.fr --method relevance --json
    """
    options = method_options(method, per, setup.seed, exclude, group)
    with usage():
        asked_units(units)

    from headcount.cli.command_run import run_of
    from headcount.cli.console import print_json, progress
    from headcount.scoring import importance as score

    model, tokenizer = setup.load_model()
    task = setup.load_task(data, tokenizer, model)
    with run_of(setup, "importance", model, [task], method=method, units=units, options=dict(options)) as run:
        with progress(f"scoring by {method}") as bar:
            scores = score(model, task, method, units=units, run=run.directory, progress=bar, **options)
        if setup.out is not None:
            scores.save(run.directory.path / "scores.json")
        result = run.finish({"model": setup.model, **task.metric.facts(), "n": len(task), **_json(scores)})
    print_json(result) if setup.as_json else _print(result, scores)


def method_options(method: str, per: str, seed: int, exclude: str = "end", group: int | None = None) -> dict[str, Any]:
    """The options of the command line that this method takes."""
    if per != "example" and method != "gradient":
        raise typer.BadParameter(f"--per {per} is for --method gradient")
    if exclude != "end" and method != "confidence":
        raise typer.BadParameter(f"--exclude {exclude} is for --method confidence")
    if group is not None and method != "oracle":
        raise typer.BadParameter(f"--group {group} is for --method oracle")
    options: dict[str, dict[str, Any]] = {
        "gradient": {"per": per}, "random": {"seed": seed}, "confidence": {"exclude": exclude},
        "oracle": {} if group is None else {"group": group},
    }  # fmt: skip
    return options.get(method, {})


def _json(scores: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "method": scores.method,
        "order_by": "normalized" if scores.normalize else "score",
        **scores.listed(),
    }
    if "neurons" in scores.counted():
        return facts
    if scores.method != "random":  # which estimates nothing
        low, high = scores.intervals()
        ends = {str(unit): (float(one), float(other)) for unit, one, other in zip(scores.units, low, high, strict=True)}
        for row in (*facts["heads"], *facts.get("units", ())):
            row["low"], row["high"] = ends[row.get("head") or row["sublayer"]]
    order = {} if "units" in facts else {"order": [str(head) for head in scores.order()]}
    return {**facts, **order, "convergence": vars(scores.convergence())}


def _print(result: dict[str, Any], scores: Any) -> None:

    title = f"{result['model']}, {scores.method} on {counted(result['n'], 'example')}"
    others = result.get("units", [])
    rows = {row.get("head") or row["sublayer"]: row for row in (*result["heads"], *others) if "site" not in row}
    ranked = [rows[name] for name in map(str, reversed(scores.order())) if name in rows]
    if ranked:
        _print_ranked(title, "unit" if others else "head", ranked, scores.normalize)
    if neurons := [row for row in others if "site" in row]:
        _print_neurons(title, neurons)
    if settled := result.get("convergence"):
        _print_convergence(settled)


def _print_ranked(title: str, unit: str, rows: list[dict[str, Any]], normalize: bool) -> None:
    """The most important first; the score that they are sorted by is the one in the first column of numbers."""
    from headcount.cli.console import console, print_table

    raw, share = "raw score" if normalize else "score", "score" if normalize else "normalized"
    table = {unit: [row.get("head") or row["sublayer"] for row in rows]}
    if normalize:
        table[share] = [f"{row['normalized']:.3f}" for row in rows]
    table[raw] = [f"{row['score']:.4g}" for row in rows]
    if "low" in rows[0]:
        table["95% interval"] = [f"{row['low']:.4g} {row['high']:.4g}" for row in rows]
    table.setdefault(share, [f"{row['normalized']:.3f}" for row in rows])
    print_table(title, list(table), list(zip(*table.values(), strict=True)), drop=[] if normalize else [share])
    divided = "; it is the raw score, divided by its norm in each layer" if normalize else ""
    console.print(f"Most important first, by the score{divided}.")


def _print_neurons(title: str, sites: list[dict[str, Any]]) -> None:
    """A row per site: there are too many neurons for one each."""
    import numpy as np

    from headcount.cli.console import console, print_table

    limit = NEAR_ZERO * float(np.mean(np.abs(np.concatenate([row["score"] for row in sites]))))
    rows = []
    for row in sites:
        scores = np.array(row["score"])
        middle, high, most = np.quantile(scores, (0.5, 0.9, 1))
        near = f"{np.mean(np.abs(scores) <= limit):.0%}"
        numbers = (f"{value:.3g}" for value in (scores.sum(), middle, high, most))
        rows.append([row["site"], f"{len(scores):,}", *numbers, near])
    columns = ["site", "neurons", "sum", "median", "90%", "largest", "near zero"]
    print_table(title, columns, rows, drop=["90%", "median", "largest"])
    console.print(f"Scores of neurons by site; near zero is at most {NEAR_ZERO:.0%} of the mean neuron's score.")


def _print_convergence(settled: dict[str, Any]) -> None:
    from headcount.cli.console import console

    if settled["stable_at"] is not None:
        console.print(
            f"The order is stable: two estimates from {counted(settled['stable_at'], 'example')} each agree "
            f"(Spearman r {settled['target']:g} or more)."
        )
    elif settled["sizes"]:
        console.print(
            f"The order is not stable yet: two estimates from {counted(settled['sizes'][-1], 'example')} each agree "
            f"with Spearman r {settled['agreement'][-1]:.2f}; more data would help."
        )
