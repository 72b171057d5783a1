"""`headcount prune MODEL --score-data TRAIN --data DEV --max-drop 0.5 --out SMALL`: the whole job in one command."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from headcount.cli.setup import Setup, command

SIZE, WAY, AFTER = "How far to cut", "How to cut", "Afterwards"


def register(app: typer.Typer) -> None:
    command(app, "prune", sharded=True)(prune)


def prune(
    setup: Setup,
    score_data: Annotated[str, typer.Option("--score-data", help="Data that heads are scored on: training data.")],
    data: Annotated[str, typer.Option("--data", help="Data that the size of the cut is chosen on: dev data.")],
    test: Annotated[str | None, typer.Option("--test", help="Data that proves it; else half of --data.")] = None,
    score_target_data: Annotated[
        str | None, typer.Option("--score-target-data", help="Targets of --score-data.")
    ] = None,
    test_target_data: Annotated[str | None, typer.Option("--test-target-data", help="Targets of --test.")] = None,
    max_drop: Annotated[
        float | None, typer.Option("--max-drop", rich_help_panel=SIZE, help="Largest drop, in points.")
    ] = None,
    heads: Annotated[
        str | None, typer.Option("--heads", rich_help_panel=SIZE, help="Heads to remove: 50% or 36.")
    ] = None,
    params: Annotated[
        str | None, typer.Option("--params", rich_help_panel=SIZE, help="Share of all parameters to save: 10%.")
    ] = None,
    speedup: Annotated[
        float | None, typer.Option("--speedup", rich_help_panel=SIZE, help="So many times as fast: 1.2.")
    ] = None,
    method: Annotated[
        str, typer.Option("--method", rich_help_panel=WAY, help="search, michel (M19), reestimated, fisher…")
    ] = "search",
    compensate: Annotated[
        str, typer.Option("--compensate", rich_help_panel=WAY, help="refit, mean or none.")
    ] = "refit",
    uniform: Annotated[
        bool, typer.Option("--uniform", rich_help_panel=WAY, help="The same number of heads in every layer.")
    ] = False,
    kinds: Annotated[
        str | None, typer.Option("--kinds", rich_help_panel=WAY, help="Only heads of these kinds: encoder,cross…")
    ] = None,
    keep_at_least: Annotated[
        int, typer.Option("--keep-at-least", rich_help_panel=WAY, min=0, help="Heads left in every site.")
    ] = 0,
    caution: Annotated[
        float,
        typer.Option("--caution", rich_help_panel=SIZE, min=0.0, help="Standard errors to stay within --max-drop."),
    ] = 0.0,
    step: Annotated[
        float, typer.Option("--step", rich_help_panel=WAY, help="Share of the heads that goes at a time, or a number.")
    ] = 0.05,
    recover_epochs: Annotated[
        int, typer.Option("--recover-epochs", rich_help_panel=AFTER, min=0, help="Fine-tune on --score-data.")
    ] = 0,
    distill: Annotated[
        float,
        typer.Option("--distill", rich_help_panel=AFTER, min=0.0, max=1.0, help="Share learnt from the original."),
    ] = 0.0,
    lr: Annotated[float, typer.Option("--lr", rich_help_panel=AFTER, help="Learning rate of the recovery.")] = 5e-5,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done and how long it takes.")] = False,
    allow_overlap: Annotated[bool, typer.Option("--allow-overlap", help="Allow the same rows in the data.")] = False,
) -> None:
    """Remove as many heads as a budget allows, make up for them, prove it on held-out data, and save.

    Points are hundredths of accuracy, F1 and Matthews, points of BLEU and chrF, percent of perplexity and loss.

    Examples:

      headcount prune ./model --score-data train.tsv --data dev.tsv --max-drop 0.5 --out small

      headcount prune ./model --score-data train.tsv --data dev.tsv --heads 50% --recover-epochs 1 --out small
    """
    from headcount.cli.console import console, messages, print_json
    from headcount.errors import HeadcountError, unknown
    from headcount.pruning import HOW, SEARCHES, Target, counts, forecast, share_or_number
    from headcount.pruning import prune as do_prune
    from headcount.training import Recovery

    if setup.out is None and not dry_run:
        raise HeadcountError("where shall the smaller model go? Give --out DIRECTORY, or --dry-run")
    if method not in SEARCHES:
        raise HeadcountError(unknown("pruning method", method, SEARCHES))
    if compensate not in HOW:
        raise HeadcountError(unknown("compensation", compensate, HOW))
    counts(1, step)  # refuses what is not a step before anything is loaded
    share = share_or_number(params, "params")
    target = Target(share_or_number(heads, "heads"), None if share is None else float(share), speedup)
    if max_drop is None and not target.given:
        raise HeadcountError("say how far to cut: --max-drop 0.5 (points), --heads 50%, --params 10% or --speedup 1.2")
    if max_drop is not None and not max_drop >= 0:
        raise HeadcountError(f"--max-drop {max_drop:g}: the largest drop is in points and not negative")
    recovery = Recovery(recover_epochs, lr=lr, distill=distill, seed=setup.seed) if recover_epochs else None
    if distill and recovery is None:
        raise HeadcountError("--distill is for the recovery: give --recover-epochs, too")
    out = None if setup.out is None else Path(setup.out)
    if out is not None and not dry_run:
        refuse_occupied(out)
    model, tokenizer = setup.load_model()
    scoring = setup.load_other(score_data, tokenizer, model, score_target_data, "--score-target-data")
    select = setup.load_task(data, tokenizer, model)
    proving = None if test is None else setup.load_other(test, tokenizer, model, test_target_data, "--test-target-data")
    ways: dict[str, Any] = {
        "method": method, "compensation": compensate, "uniform": uniform, "keep_at_least": keep_at_least,
        "kinds": None if kinds is None else [kind.strip() for kind in kinds.split(",")], "recovery": recovery,
        "seed": setup.seed, "allow_overlap": allow_overlap, "caution": caution, "step": step,
    }  # fmt: skip
    if dry_run:
        plan = forecast(model, scoring, select, proving, max_drop, target, **ways)
        print_json({"model": setup.model, **plan}) if setup.as_json else console.print(plan["text"], soft_wrap=True)
        return
    assert out is not None
    result = _run(setup, out, model, tokenizer, [scoring, select, proving], max_drop, target, ways, do_prune)
    if setup.as_json:
        print_json(result)
        return
    console.print(result["report"], soft_wrap=True, markup=False)
    if uniform and not result["stock"]:
        messages.print("This family has no stock form for fewer heads of the same size: load it with headcount.load.")


def refuse_occupied(out: Path) -> None:
    """Nothing is overwritten: a directory may be new, empty, or the unfinished run of the same command."""
    from headcount.errors import RunConflict
    from headcount.runs import read_run

    if not out.exists():
        return
    if not out.is_dir():
        raise RunConflict(f"{out} is a file; choose another --out")
    known = read_run(out)
    if known is not None and known.get("finished"):
        raise RunConflict(f"{out} holds a finished run already; choose another --out")


def _run(
    setup: Setup,
    out: Path,
    model: Any,
    tokenizer: Any,
    tasks: list[Any],
    max_drop: float | None,
    target: Any,
    ways: dict[str, Any],
    do_prune: Any,
) -> dict[str, Any]:
    """Prune, save the model inside the run directory, and write down what happened."""
    from headcount.cli.console import progress
    from headcount.cli.loading import run_of
    from headcount.errors import HeadcountError
    from headcount.surgery import as_stock, save

    scoring, select, proving = tasks
    new = not out.exists()
    settings = {**ways, "recovery": vars(ways["recovery"]) if ways["recovery"] else None, "max_drop": max_drop}
    settings.pop("seed")
    with run_of(setup, "prune", model, [task for task in tasks if task], target=vars(target), **settings) as run:
        try:
            with progress("pruning") as bar:
                pruned = do_prune(
                    model, scoring, select, proving, max_drop, **vars(target), **ways,
                    run=run.directory,
                    progress=lambda what, share: bar(share) if share else None,
                )  # fmt: skip
        except HeadcountError:
            if new:  # what was asked for cannot be done: leave the place free for another try
                shutil.rmtree(out)
            raise
        stock = as_stock(pruned.model)[1] != {}
        path = save(pruned.model, out / "model", tokenizer=tokenizer)
        report = pruned.report(path.as_posix())
        if stock:
            report += "\n(or with plain transformers: it is a stock checkpoint)"
        return run.finish(
            {"model": setup.model, **pruned.to_json(), "path": path.as_posix(), "stock": stock, "report": report}
        )
