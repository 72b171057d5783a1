"""`headcount prune MODEL --score-data TRAIN --data DEV --max-drop 0.5 --out SMALL`: the whole job in one command.

`headcount remove MODEL --heads … --out DIR` removes the units you name.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headcount.cli.options import (
    AsJson,
    Model,
    Overwrite,
    ScoreTargets,
    Setup,
    TestTargets,
    amount,
    command,
    listed,
    option,
    usage,
)
from headcount.settings import Compensation, Cost, Groups, Method, Overlap

SIZE, WAY, AFTER = "How far to cut", "How to cut", "Afterwards"
OverlapOption = Annotated[
    Overlap, typer.Option("--overlap", help="Rows that two data sets share: refuse, drop from the later one, or allow.")
]
Saved = Literal["auto", "float32", "bfloat16", "float16"]


def _amount(name: str, about: str, metavar: str = "%") -> Any:
    return typer.Option(name, rich_help_panel=SIZE, parser=amount(name), metavar=metavar, help=about)


@command(sharded=True)
def prune(
    setup: Setup,
    score_data: Annotated[str, typer.Option("--score-data", help="Data to score units on, such as training data.")],
    data: Annotated[str, typer.Option("--data", help="Data to choose the size of the cut on, such as dev data.")],
    test: Annotated[
        str | None, typer.Option("--test", help="Held-out data for the verdict; by default half of --data.")
    ] = None,
    score_target_data: ScoreTargets = None,
    test_target_data: TestTargets = None,
    max_drop: Annotated[
        float | None,
        typer.Option(
            "--max-drop", rich_help_panel=SIZE, help="Largest drop, in points; with another option here, the verdict's."
        ),
    ] = None,
    heads: Annotated[str | None, _amount("--heads", "Heads to remove: 50% or 36.", "N or %")] = None,
    params: Annotated[str | None, _amount("--params", "Share of all parameters to save: 10%.")] = None,
    flops: Annotated[str | None, _amount("--flops", "Share of all FLOPs to save: 50%.")] = None,
    speedup: Annotated[float | None, typer.Option("--speedup", rich_help_panel=SIZE, help="Target speedup: 2.")] = None,
    confidence: Annotated[
        float,
        typer.Option(
            "--confidence",
            rich_help_panel=SIZE,
            help="That the drop is within --max-drop on other data, too; 0.5 goes by the measured drop.",
        ),
    ] = 0.95,
    units: Annotated[
        str | None,
        typer.Option(
            "--units",
            rich_help_panel=WAY,
            help="What to remove: heads,neurons,sublayers; by default heads,neurons with --params, --flops or "
            "--speedup, otherwise heads.",
        ),
    ] = None,
    cost: Annotated[
        Cost | None,
        typer.Option("--cost", rich_help_panel=WAY, help="What a unit's expected loss is weighed against."),
    ] = None,
    method: Annotated[
        Method, typer.Option("--method", rich_help_panel=WAY, help="How units are chosen; michel is M19.")
    ] = "search",
    compensation: Annotated[
        Compensation,
        typer.Option("--compensate", rich_help_panel=WAY, help="How the remaining units are adjusted."),
    ] = "refit",
    uniform: Annotated[
        bool, typer.Option("--uniform", rich_help_panel=WAY, help="Keep the same number of units in every layer.")
    ] = False,
    groups: Annotated[
        Groups,
        typer.Option("--groups", rich_help_panel=WAY, help="whole: query heads go with their key-value head."),
    ] = "any",
    kinds: Annotated[
        str | None, typer.Option("--kinds", rich_help_panel=WAY, help="Only units of these kinds: encoder,cross…")
    ] = None,
    keep_at_least: Annotated[
        int, typer.Option("--keep-at-least", rich_help_panel=WAY, min=0, help="Units to keep in every site.")
    ] = 0,
    step: Annotated[
        float,
        typer.Option(
            "--step", rich_help_panel=WAY, help="To remove per step: a share, or a number of heads; not with --heads."
        ),
    ] = 0.05,
    early: Annotated[
        bool,
        typer.Option(
            "--early/--no-early",
            rich_help_panel=WAY,
            help="Measure cuts on as much data as their test needs, or on all.",
        ),
    ] = True,
    score_examples: Annotated[
        int, typer.Option("--score-examples", rich_help_panel=WAY, min=1, help="Score units on at most this many.")
    ] = 1024,
    recover_epochs: Annotated[
        int, typer.Option("--recover-epochs", rich_help_panel=AFTER, min=0, help="Fine-tune on --score-data.")
    ] = 0,
    distill: Annotated[
        float,
        typer.Option(
            "--distill", rich_help_panel=AFTER, min=0.0, max=1.0, help="Share of that loss from the original model."
        ),
    ] = 0.0,
    hidden: Annotated[
        float,
        typer.Option(
            "--hidden", rich_help_panel=AFTER, min=0.0, help="Weight of the distance from its hidden states, such as 1."
        ),
    ] = 0.0,
    augment: Annotated[
        float,
        typer.Option(
            "--augment",
            rich_help_panel=AFTER,
            min=0.0,
            max=0.5,
            help="Share of words to replace in every other batch, such as 0.1; the original model gives the labels.",
        ),
    ] = 0.0,
    lr: Annotated[float, typer.Option("--lr", rich_help_panel=AFTER, help="Learning rate of the fine-tuning.")] = 5e-5,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done, and how long it would take.")
    ] = False,
    overlap: OverlapOption = "refuse",
) -> None:
    """Remove as much as a budget allows, compensate for it, test the result on held-out data, and save it.

    Points are hundredths of accuracy, F1, word error rate and other shares, points of BLEU and chrF, percent of
    perplexity and loss.

    Examples:

      headcount prune ./model --score-data train.tsv --data dev.tsv --max-drop 0.5 --out small

      headcount prune ./model --score-data train.tsv --data dev.tsv --speedup 2 --out small

      headcount prune ./model --score-data train.tsv --data dev.tsv --max-drop 1 --units heads,neurons --out small

      headcount prune ./model --score-data train.tsv --data dev.tsv --heads 50% --recover-epochs 1 --out small

      headcount prune model.int8.onnx --score-data train.tsv --data dev.tsv --flops 50% --out small
    """
    from headcount.cli.command_run import refuse_finished
    from headcount.settings import Pruning, Recovery

    given = locals()  # an option of the name of a field of `Pruning` sets that field
    if setup.out is None and not dry_run:
        raise typer.BadParameter("--out is required, except with --dry-run")
    for name, value in (("--distill", distill), ("--hidden", hidden), ("--augment", augment)):
        if value and not recover_epochs:
            raise typer.BadParameter(f"{name} needs --recover-epochs")
    knobs = {name: value for name, value in given.items() if name in Pruning.__dataclass_fields__}
    with usage():
        tuned: dict[str, Any] = {"distill": distill, "hidden": hidden, "augment": augment}
        recovery = Recovery(recover_epochs, lr=lr, **tuned, seed=setup.seed) if recover_epochs else None
        settings = Pruning(**knobs, recovery=recovery, seed=setup.seed)
    out = None if setup.out is None else Path(setup.out)
    if out is not None and not dry_run:
        refuse_finished(out)

    from headcount.cli.console import console, messages, print_json
    from headcount.pruning import forecast

    model, tokenizer = setup.load_trainable()
    tasks = (
        setup.load_other(score_data, tokenizer, model, score_target_data, "--score-target-data"),
        setup.load_task(data, tokenizer, model),
        None if test is None else setup.load_other(test, tokenizer, model, test_target_data, "--test-target-data"),
    )
    if out is None or dry_run:
        plan = forecast(model, *tasks, settings)
        print_json({"model": setup.model, **plan}) if setup.as_json else console.print(plan["text"], soft_wrap=True)
        return
    result = _prune_and_save(setup, out, model, tokenizer, tasks, settings)
    if setup.as_json:
        print_json(result)
        return
    console.print(result["report"], soft_wrap=True, markup=False)
    if uniform and not result["stock"]:
        messages.print("This family has no stock form with fewer heads of the same size: load it with headcount.load.")


def _prune_and_save(
    setup: Setup, out: Path, model: Any, tokenizer: Any, tasks: tuple[Any, Any, Any], settings: Any
) -> dict[str, Any]:
    """Prune, save the model inside the run directory, and write down what happened."""
    from headcount.cli.command_run import run_of
    from headcount.cli.console import progress
    from headcount.cli.model_loading import save_in, saved_precision
    from headcount.errors import HeadcountError
    from headcount.export import open_onnx
    from headcount.pruning import prune, split_data
    from headcount.runs import fingerprint
    from headcount.surgery import as_stock

    is_new, given = not out.exists(), settings.signature()
    precision = saved_precision(setup.model, model) if setup.dtype == "auto" else None
    if setup.model.endswith(".onnx"):
        given["onnx"] = fingerprint(open_onnx(setup.model))
    with run_of(setup, "prune", model, [task for task in tasks if task], **given) as run:
        try:
            with progress("pruning") as bar:
                pruned = prune(
                    model, *tasks, settings=settings, run=run.directory, precision=precision,
                    progress=lambda what, share: bar(share, what),
                )  # fmt: skip
        except HeadcountError:
            if is_new:  # nothing was made: leave the place free for another attempt
                shutil.rmtree(out)
            raise
        is_stock = as_stock(pruned.model)[1] != {}
        evidence = pruned.evidence(Path(setup.own["test"] or setup.own["data"]).name, setup.own["command_line"])
        path = save_in(precision, pruned.model, out / "model", tokenizer=tokenizer, evidence=evidence)
        report = pruned.report(path.as_posix())
        if is_stock:
            report += "\n(or with plain transformers: it is a stock checkpoint)"
        facts = {**pruned.to_json(), "path": path.as_posix(), "stock": is_stock}
        if setup.model.endswith(".onnx"):
            facts["onnx"], proof = _export_again(setup.model, pruned, split_data(*tasks, settings).test, out)
            report += f"\n{proof}"
        return run.finish({"model": setup.model, **facts, "report": report})


def _export_again(given: str, pruned: Any, test: Any, out: Path) -> tuple[dict[str, Any], str]:
    """Write the smaller model as the given .onnx file was, compare both files on the test data, and say how."""
    from headcount.bench import measure_speed
    from headcount.cli.console import progress
    from headcount.export import OnnxModel, export_onnx, open_onnx
    from headcount.pruning import before_and_after, compare_models

    written = export_onnx(pruned.model, out / "model.onnx", int8=OnnxModel(given).is_int8, overwrite=True)
    before, after = open_onnx(given), open_onnx(written.file)
    with progress("testing the export") as bar:
        found = compare_models(before, after, test, max_drop=pruned.max_drop, progress=bar)
    speed = measure_speed(before, after, test)
    bits = "8 bits" if written.int8_difference is not None else "float32"
    lines = [
        f"Exported to {written.file.as_posix()} ({written.size / 1e6:,.1f} MB, {bits}). In onnxruntime:",
        before_and_after(found.metric, found.n, found.before, found.after, found.change, found.low, found.high),
        found.verdict_in_words(),
        f"Speed there: {speed.before:.0f} examples/s before, {speed.after:.0f} after ({speed.speedup:.2f} times as "
        f"fast in paired rounds, 95% interval {speed.low:.2f} to {speed.high:.2f}).",
    ]
    facts = {"path": written.file.as_posix(), "size": written.size, **found.to_json(), "speed": vars(speed)}
    return facts, "\n".join(lines)


@command()
def remove(
    model: Model,
    heads: Annotated[str, option("--heads", help="Units to remove: encoder.3.5,encoder_ffn.4.0-511…")],
    out: Annotated[str, option("--out", help="Directory for the smaller model.")],
    as_json: AsJson = False,
    dtype: Annotated[Saved, option("--dtype", help="Precision to save in; auto keeps the original.")] = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Remove heads, neurons or whole sublayers from the weights, and save the smaller model.

    Examples:

      headcount remove ./my-model --heads encoder.3.5,encoder.4.0 --out ./smaller

      headcount remove ./translator --heads cross.0.1 --out ./smaller --dtype float16 --overwrite

      headcount remove ./my-model --heads encoder.5,encoder_ffn.5.0-511 --out ./smaller
    """
    from headcount.cli.command_run import refuse_missing_model
    from headcount.cli.console import console, print_json
    from headcount.errors import HeadcountError
    from headcount.heads import count_units, parse_units
    from headcount.model_directory import fetch

    if not listed(heads):
        raise typer.BadParameter("--heads is empty; write for example --heads encoder.3.5,encoder.4.0")
    if Path(out).exists() and any(Path(out).iterdir() if Path(out).is_dir() else [out]) and not overwrite:
        raise HeadcountError(f"{out} already exists", advice="choose another {out}, or replace it with {overwrite}")
    parse_units(heads)
    refuse_missing_model(model)

    from headcount import surgery
    from headcount.runs import model_signature, versions
    from headcount.structure import whole_anatomy

    loaded = surgery.load(fetch(model), dtype=dtype)
    before = sum(parameter.numel() for parameter in loaded.parameters())
    found = whole_anatomy(loaded)
    removed = found.check(heads)
    names = found.written(removed)
    surgery.remove(loaded, removed, inplace=True)
    evidence = surgery.Evidence(command=["remove", model, "--heads", heads, "--out", out])
    path = surgery.save(loaded, out, evidence=evidence)
    left = whole_anatomy(loaded).heads
    neurons = sum(head.is_neuron for head in left)
    after = sum(parameter.numel() for parameter in loaded.parameters())
    if as_json:
        print_json(
            {
                "model": model,
                "removed": names,
                "left": len(left) - neurons,
                "neurons_left": neurons,
                "parameters_before": before,
                "parameters_after": after,
                "path": str(path),
                "signature": {"model": model_signature(loaded), "versions": versions()},
            }
        )
        return
    console.print(
        f"Removed {count_units(removed)}, {_left(left, removed)} left; "
        f"{before:,} parameters before, {after:,} after ({after / before - 1:+.1%})."
    )
    console.print(f"Saved to {path}. Load it with: headcount.load({str(path)!r})", soft_wrap=True)


def _left(left: tuple[Any, ...], removed: tuple[Any, ...]) -> str:
    """How much is left of what some was removed from."""
    from headcount.heads import count_units

    if not any(head.is_neuron for head in removed):
        return f"{sum(not head.is_neuron for head in left)}"
    return count_units(left)
