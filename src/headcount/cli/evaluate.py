"""`headcount evaluate MODEL --data …`: the metric, whole or with heads off."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headcount.cli.setup import Setup, command


def register(app: typer.Typer) -> None:
    command(app, "evaluate", sharded=True)(evaluate)


def evaluate(
    setup: Setup,
    data: Annotated[str, typer.Option("--data", help="csv, tsv, jsonl, parquet or text file, or hub id.")],
    off: Annotated[str | None, typer.Option("--off", help="Heads to turn off: encoder.3.5,…")] = None,
) -> None:
    """Measure a model on your data, whole or with heads turned off.

    Examples:

      headcount evaluate ./model --data dev.tsv

      headcount evaluate ./translator --data val.en --target-data val.fr --off cross.5.1,cross.5.3
    """
    from headcount.ablation import effects_of
    from headcount.cli.console import console, number, print_json, progress
    from headcount.cli.loading import run_of
    from headcount.evaluation import evaluate
    from headcount.stats import SEED, interval
    from headcount.structure import anatomy

    model, tokenizer = setup.load_model()
    task = setup.load_task(data, tokenizer, model)
    heads = anatomy(model).check(off or "")
    with run_of(setup, "evaluate", model, [task], off=[str(head) for head in heads]) as run:
        with progress("evaluating") as bar:
            outcomes = evaluate(model, task, [(), heads] if heads else [()], run=run.directory, progress=bar)
        low, high = interval(outcomes.of(heads), task.metric.of_sums)
        result: dict[str, Any] = {
            "model": setup.model,
            **task.metric.facts(),
            "n": len(task),
            "off": [str(head) for head in heads],
            "score": outcomes.score(heads),
            "low": low,
            "high": high,
            "near_ties": outcomes.near_ties,
        }
        if heads:
            effect = effects_of(outcomes, [frozenset(heads)], None, 0.05, SEED)
            result |= {"base": outcomes.score(), "change": effect.change[0], "p": effect.p[0], "test": effect.test}
            result |= {"change_low": effect.low[0], "change_high": effect.high[0]}
        result = run.finish(result)
    if setup.as_json:
        print_json(result)
        return
    metric = task.metric
    console.print(
        f"{metric.name} {number(result['score'], metric)} "
        f"(95% interval {number(low, metric)} to {number(high, metric)}, {len(task)} examples)"
    )
    if heads:
        change = f"{number(result['change_low'], metric)} to {number(result['change_high'], metric)}"
        console.print(
            f"with {len(heads)} heads off; the whole model: {number(result['base'], metric)}, "
            f"change {number(result['change'], metric)} (95% interval {change}), p {result['p']:.3g} ({result['test']})"
        )
