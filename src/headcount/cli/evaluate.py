"""`headcount evaluate`: the metric of a model, whole or masked; `headcount compare`: two models, or two data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headcount.cli.options import SOURCES, Data, Fill, Setup, command, listed, option
from headcount.errors import HeadcountError, counted


@command(sharded=True)
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
    if off is not None and not listed(off):
        raise typer.BadParameter("--off is empty; write for example --off encoder.3.5,encoder.4.0, or leave it out")

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
            "score": outcomes.score(heads),
            "low": low,
            "high": high,
            "model": setup.model,
            **task.metric.facts(),
            "n": len(task),
            "off": names,
            "near_ties": outcomes.near_ties,
        }
        if heads:
            effect = effects_of(outcomes, [frozenset(heads)], None, 0.05, SEED)
            result |= {"base": outcomes.score(), "change": effect.change[0], "p": effect.p[0], "test": effect.test}
            result |= {"change_low": effect.low[0], "change_high": effect.high[0]}
        result = run.finish(result)
    print_json(result) if setup.as_json else _print(result, task.metric, heads)


def _print(result: dict[str, Any], metric: Any, heads: tuple[Any, ...]) -> None:
    from headcount.cli.console import console, number, signed
    from headcount.heads import count_units

    score, low, high = (number(result[name], metric) for name in ("score", "low", "high"))
    console.print(f"{metric.name} {score} (95% interval {low} to {high}, {counted(result['n'], 'example')})")
    if result["off"]:
        change, low, high = (signed(result[name], metric) for name in ("change", "change_low", "change_high"))
        console.print(
            f"with {count_units(heads)} off; the whole model: {number(result['base'], metric)}, "
            f"change {change} (95% interval {low} to {high}), p {result['p']:.3g} ({result['test']})"
        )


@command(sharded=True)
def compare(
    setup: Setup,
    data: Data,
    other: Annotated[
        str | None, typer.Argument(metavar="OTHER", help="Model to compare: a directory, a hub id or an .onnx file.")
    ] = None,
    max_drop: Annotated[
        float, option("--max-drop", min=0.0, help="Two models: the margin of the verdict, in points.")
    ] = 1.0,
    against: Annotated[str | None, option("--against", help="One model: the other data set.")] = None,
    against_target_data: Annotated[
        str | None, option("--against-target-data", panel=SOURCES, help="Targets of --against.")
    ] = None,
    fill: Fill = "zero",
) -> None:
    """Compare two models on the same data; or, with --against, every head's effect on two data sets (M19, figure 2).

    Two models are compared example by example: the change with its interval and test, whether the second is shown to
    be at most --max-drop points worse, and how often both predict the same.

    Examples:

      headcount compare ./model ./small/model --data test.tsv --max-drop 0.5

      headcount compare ./model small.onnx --data test.tsv

      headcount compare ./cola-model --data in_domain_dev.tsv --against out_of_domain_dev.tsv --metric matthews

      headcount compare ./translator --data news.en --target-data news.fr --against talks.en
      --against-target-data talks.fr --out run
    """
    if (other is None) == (against is None):
        raise typer.BadParameter("give either a second model or another data set (--against)")
    if other is not None and fill != "zero":
        raise typer.BadParameter("--fill is for --against: nothing is ablated when two models are compared")
    if fill == "counterfactual":
        raise typer.BadParameter("--fill counterfactual is for ablate, where --against names the corrupted texts")
    if other is not None:
        _two_models(setup, data, other, max_drop)
    else:
        assert against is not None
        _two_data_sets(setup, data, against, against_target_data, fill)


def _two_models(setup: Setup, data: str, other: str, max_drop: float) -> None:
    from headcount.cli.command_run import run_of
    from headcount.cli.console import print_json, progress
    from headcount.cli.model_loading import load_reader, load_weights, tokenizer_directory
    from headcount.pruning import compare_models

    model, tokenizer = setup.load_model()
    task = setup.load_task(data, tokenizer, model)
    _refuse_other_task(setup, other, task.kind)
    second, on_other = load_weights(other, setup.device, setup.dtype), None
    if not other.endswith(".onnx"):  # an export has the tokenizer of the model that it is compared with
        reader = load_reader(tokenizer_directory(other), other, second)
        on_other = setup.load_task(data, reader, second)
    with run_of(setup, "compare", model, [task], other=other, max_drop=max_drop) as run:
        with progress("comparing") as bar:
            found = compare_models(model, second, task, on_other, max_drop=max_drop, run=run.directory, progress=bar)
        result = run.finish({**found.to_json(), "model": setup.model, "other": other})
    print_json(result) if setup.as_json else _print_models(result, task.metric)


def _refuse_other_task(setup: Setup, other: str, kind: str) -> None:
    """Refuse a second model that is not made for the task of the first; its weights are not read."""
    from headcount.cli.model_loading import refuse_unsuited

    try:
        refuse_unsuited(other, kind, None)
    except HeadcountError as error:
        advice = "compare two models of one task"
        raise HeadcountError(f"{other} cannot be compared with {setup.model}: {error.message}", advice) from error


def _print_models(result: dict[str, Any], metric: Any) -> None:
    from headcount.cli.console import console, number, signed

    before, after = (number(result[name], metric) for name in ("before", "after"))
    change, low, high = (signed(result[name], metric) for name in ("change", "low", "high"))
    console.print(f"{metric.name} on {counted(result['n'], 'example')}:", markup=False)
    console.print(f"  {result['model']}: {before}", soft_wrap=True, markup=False)
    console.print(f"  {result['other']}: {after}", soft_wrap=True, markup=False)
    tested = f"p {result['p']:.3g} ({result['test']})"
    console.print(f"Change {change} (95% interval {low} to {high}), {tested}.", soft_wrap=True)
    console.print(result["verdict"], soft_wrap=True)
    if result["agreement"] is not None:
        console.print(f"Both predict the same for {result['agreement']:.1%} of the {result['agreement_of']}.")


def _two_data_sets(setup: Setup, data: str, against: str, against_target_data: str | None, fill: str) -> None:
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
    print_json(result) if setup.as_json else _print_data_sets(result, task.metric, setup.out)


def _print_data_sets(result: dict[str, Any], metric: Any, out: str | None) -> None:
    """The effects on both data sets, the largest first, and how they correlate."""
    from headcount.cli.console import console, print_table, signed

    rows = sorted(result["heads"], key=lambda row: -abs(row["change"]))
    print_table(
        f"{result['model']}, {result['metric']} {result['base']:.4g}, {counted(result['n'], 'example')}",
        ["head", "change", "change on the other data"],
        [[row["head"], signed(row["change"], metric), signed(row["change_against"], metric)] for row in rows],
    )
    console.print(
        result["remark"]
        or f"Pearson r {result['pearson']:.2f} (p {result['p']:.2g}), "
        f"Spearman r {result['spearman']:.2f} (p {result['spearman_p']:.2g}) over {counted(len(rows), 'head')}."
    )
    if out is not None:
        console.print(f"The scatter plot is in {Path(out) / 'scatter.svg'}.", soft_wrap=True)
