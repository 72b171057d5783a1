"""`headcount evaluate MODEL --data …`: the metric, whole or with heads, neurons or sublayers off."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headcount.cli.options import Data, Setup, command, option


def register(app: typer.Typer) -> None:
    command(app, "evaluate", sharded=True)(evaluate)


def evaluate(
    setup: Setup,
    data: Data,
    off: Annotated[
        str | None,
        option("--off", help="Units to turn off: encoder.3.5,encoder_ffn.4.0-511…"),
    ] = None,
) -> None:
    """Measure a model on your data, whole or with heads, neurons or sublayers turned off.

    Examples:

      headcount evaluate ./model --data dev.tsv

      headcount evaluate ./translator --data val.en --target-data val.fr --off cross.5.1,cross.5.3

      headcount evaluate ./model --data dev.tsv --off encoder.3,encoder_ffn.3.0-511
    """
    from headcount.ablation import effects_of
    from headcount.cli.command_run import run_of
    from headcount.cli.console import print_json, progress
    from headcount.evaluation import evaluate
    from headcount.stats import SEED, interval
    from headcount.structure import whole_anatomy

    model, tokenizer = setup.load_model()
    task = setup.load_task(data, tokenizer, model)
    found = whole_anatomy(model)
    heads = found.check(off or "")
    names = found.written(heads)
    with run_of(setup, "evaluate", model, [task], off=names) as run:
        with progress("evaluating") as bar:
            outcomes = evaluate(model, task, [(), heads] if heads else [()], run=run.directory, progress=bar)
        low, high = interval(outcomes.of(heads), task.metric)
        result: dict[str, Any] = {
            "model": setup.model,
            **task.metric.facts(),
            "n": len(task),
            "off": names,
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
    print_json(result) if setup.as_json else _print(result, task.metric, heads)


def _print(result: dict[str, Any], metric: Any, heads: tuple[Any, ...]) -> None:
    from headcount.cli.console import console, count_units, number, signed

    score, low, high = (number(result[name], metric) for name in ("score", "low", "high"))
    console.print(f"{metric.name} {score} (95% interval {low} to {high}, {result['n']} examples)")
    if result["off"]:
        change, low, high = (signed(result[name], metric) for name in ("change", "change_low", "change_high"))
        console.print(
            f"with {count_units(heads)} off; the whole model: {number(result['base'], metric)}, "
            f"change {change} (95% interval {low} to {high}), p {result['p']:.3g} ({result['test']})"
        )
