"""`headcount gates MODEL --data TRAIN --target-heads 12 --out SMALL`: pruning by learning (V19, CoFi)."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from headcount.cli.options import Setup, TestTargets, command, listed, usage
from headcount.errors import counted
from headcount.heads import asked_units
from headcount.settings import Gating, Overlap, Recovery, Weights

SIZE, TRAINING, SCRATCH = "How much to keep", "How to train", "Comparison with training from scratch"
CAUSAL = "Causal head gating"


@command()
def gates(
    setup: Setup,
    data: Annotated[str, typer.Option("--data", help="Training data, for the gates and the weights.")],
    test: Annotated[str | None, typer.Option("--test", help="Test data; by default a tenth of --data.")] = None,
    test_target_data: TestTargets = None,
    lam: Annotated[
        str | None,
        typer.Option("--lambda", rich_help_panel=SIZE, help="Price of an open gate, 0.05; or a path, 0.01,0.03."),
    ] = None,
    target_heads: Annotated[
        str | None,
        typer.Option("--target-heads", rich_help_panel=SIZE, help="Exactly how many heads, 12; or a path, 24,12,6."),
    ] = None,
    units: Annotated[
        str,
        typer.Option("--units", rich_help_panel=SIZE, help="What gets gates: heads, neurons, sublayers; with commas."),
    ] = "heads",
    target_flops: Annotated[
        str | None,
        typer.Option(
            "--target-flops", rich_help_panel=SIZE, help="Share of the FLOPs to keep, 50%; or a path, 70%,50%."
        ),
    ] = None,
    causal: Annotated[
        bool,
        typer.Option(
            "--causal", rich_help_panel=CAUSAL, help="Remove nothing: which heads help, hinder or do not matter?"
        ),
    ] = False,
    seeds: Annotated[
        int | None, typer.Option("--seeds", rich_help_panel=CAUSAL, min=1, help="How often gates are fitted; 5.")
    ] = None,
    kinds: Annotated[
        str | None, typer.Option("--kinds", rich_help_panel=SIZE, help="Gates on these kinds only: encoder,cross.")
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", rich_help_panel=TRAINING, min=1, help="Epochs of each stage.")] = 1,
    lr: Annotated[float, typer.Option("--lr", rich_help_panel=TRAINING, help="Learning rate of the weights.")] = 5e-5,
    gate_lr: Annotated[
        float, typer.Option("--gate-lr", rich_help_panel=TRAINING, help="Learning rate of the gates.")
    ] = 0.1,
    tokens: Annotated[int, typer.Option("--tokens", rich_help_panel=TRAINING, min=1, help="Tokens in a batch.")] = 1024,
    weights: Annotated[
        Weights | None,
        typer.Option(
            "--weights",
            rich_help_panel=TRAINING,
            help="Weights to train: all, those of layers with gates, or none. Default: gated with --kinds, else all.",
        ),
    ] = None,
    roles: Annotated[
        str | None, typer.Option("--roles", help="Run directory of `headcount roles`: count which roles survive.")
    ] = None,
    overlap: Annotated[
        Overlap,
        typer.Option("--overlap", help="Test examples that are also in the training data."),
    ] = "refuse",
    from_scratch: Annotated[
        bool,
        typer.Option("--from-scratch", rich_help_panel=SCRATCH, help="Also train the same layout from random weights."),
    ] = False,
    scratch_epochs: Annotated[
        int | None,
        typer.Option(
            "--scratch-epochs",
            rich_help_panel=SCRATCH,
            min=1,
            help="By default as many as the original was trained for, if a file beside it says so; else --epochs.",
        ),
    ] = None,
    scratch_lr: Annotated[
        float, typer.Option("--scratch-lr", rich_help_panel=SCRATCH, help="Learning rate from scratch.")
    ] = 5e-4,
) -> None:
    """Learn which heads to remove: L0 gates on heads, trained together with the model (V19).

    Neurons and whole sublayers can have gates too (CoFi), with a share of the FLOPs as the goal.
    At the end every gate is 0 or 1, units with closed gates are removed, and a plain model is saved.
    With --causal the model stays as it is, and gates tell what its heads do (arXiv:2505.13737).

    Examples:

      headcount gates ./model --data train.tsv --test dev.tsv --target-heads 18 --out small

      headcount gates ./model --data train.tsv --test dev.tsv --units heads,neurons --target-flops 50% --out half

      headcount gates ./mt --data train.en --target-data train.de --kinds encoder --lambda 0.01,0.03 --out path

      headcount gates ./gpt2 --data texts.txt --causal --epochs 3 --out causal
    """
    from headcount.cli.command_run import refuse_finished

    if causal:
        removing = {
            "--test": test, "--target-heads": target_heads, "--target-flops": target_flops, "--weights": weights,
            "--roles": roles, "--from-scratch": from_scratch or None, "--units": None if units == "heads" else units,
        }  # fmt: skip
        for option, value in removing.items():
            if value is not None:
                raise typer.BadParameter(f"{option} is for gates that remove something; leave it out with --causal")
        _causal(setup, data, _numbers("--lambda", lam, float), seeds, listed(kinds), (epochs, lr, gate_lr, tokens))
        return
    if seeds is not None:
        raise typer.BadParameter("--seeds is for --causal")
    if setup.out is None and not setup.dry_run:
        raise typer.BadParameter("--out is required: the directory for the smaller model")
    prices, targets = _numbers("--lambda", lam, float), _numbers("--target-heads", target_heads, int)
    shares = _numbers("--target-flops", target_flops, _share)
    if sum(goal is not None for goal in (prices, targets, shares)) != 1:
        raise typer.BadParameter("give one of --lambda, the price of an open gate, --target-heads and --target-flops")
    with usage():
        asked_units(units)
        settings = Gating(epochs, lr, gate_lr, tokens, weights, setup.seed)
    known = None if roles is None else read_roles(roles)
    if setup.sample is not None:
        setup.out = tempfile.mkdtemp()  # a dry run, which removes it at its end
    assert setup.out is not None
    out = Path(setup.out)
    refuse_finished(out)

    from headcount.cli.console import console, print_json
    from headcount.gates import plan_stages

    with usage():
        plan_stages(prices, targets, shares)
    model, tokenizer = setup.load_model()
    train_task = setup.load_task(data, tokenizer, model)
    test_task = (
        None if test is None else setup.load_other(test, tokenizer, model, test_target_data, "--test-target-data")
    )
    options: dict[str, Any] = {
        "lam": prices, "target_heads": targets, "target_flops": shares, "units": units,
        "settings": settings, "overlap": overlap, "roles": known,
        "kinds": listed(kinds),
    }  # fmt: skip
    scratch = ((scratch_epochs or known_epochs(setup.model) or epochs) if from_scratch else 0, scratch_lr)
    try:
        result = _run(setup, out, model, tokenizer, train_task, test_task, options, scratch)
    finally:
        if setup.sample is not None:
            shutil.rmtree(out)
            setup.out = None
    print_json(result) if setup.as_json else console.print(result["report"], soft_wrap=True, markup=False)


def _causal(
    setup: Setup,
    data: str,
    prices: list[float] | None,
    seeds: int | None,
    kinds: list[str] | None,
    training: tuple[int, float, float, int],
) -> None:
    """Fit gates to the model as it is, and say what its heads do."""
    if prices is not None and len(prices) > 1:
        raise typer.BadParameter("--causal takes one --lambda, which presses gates to open and then to close")
    with usage():
        settings = Gating(*training, seed=setup.seed)

    from headcount.cli.command_run import run_of
    from headcount.cli.console import console, print_json, progress
    from headcount.gates import causal_gates

    options: dict[str, Any] = {"lam": prices[0]} if prices else {}
    options |= {"seeds": seeds} if seeds else {}
    model, tokenizer = setup.load_model()
    task = setup.load_task(data, tokenizer, model)
    stated = {**options, "kinds": kinds, "settings": vars(settings)}
    with run_of(setup, "gates --causal", model, [task], **stated) as run:
        with progress("fitting gates") as bar:
            found = causal_gates(
                model, task, kinds=kinds, settings=settings, run=run.directory,
                progress=lambda what, share: bar(share, what), **options,
            )  # fmt: skip
        result = run.finish({"model": setup.model, **found.to_json(), "report": found.report()})
    print_json(result) if setup.as_json else console.print(result["report"], soft_wrap=True, markup=False)


def read_roles(path: str) -> dict[Any, tuple[str, ...]]:
    """All roles of each head, from a run of `headcount roles`; scores of different roles cannot be compared."""
    from headcount.errors import HeadcountError
    from headcount.heads import Head
    from headcount.runs import read_run

    content = read_run(path)
    rows = None if content is None else content.get("heads")
    if not isinstance(rows, list) or not all(isinstance(row, dict) and "role" in row for row in rows):
        raise HeadcountError(f"{path} is not a finished run of `headcount roles`", advice="choose another {roles}")
    found: dict[Any, dict[str, None]] = {}
    for row in rows:
        if row["role"]:
            found.setdefault(Head.parse(str(row.get("head"))), {})[str(row["role"])] = None
    return {head: tuple(roles) for head, roles in found.items()}


def known_epochs(directory: str) -> int | None:
    """For how many epochs a model was trained, if a file beside it says so.

    That is transformers' trainer_state.json, or the scores.json of recipes/train_translator.py.
    """
    from headcount.errors import HeadcountError
    from headcount.files import read_object

    try:
        state, scores = (Path(directory) / name for name in ("trainer_state.json", "scores.json"))
        if found := read_object(state):
            return max(1, round(float(found["num_train_epochs"])))
        if found := read_object(scores):
            return max(len(by_epoch) for by_epoch in found.values())
    except (HeadcountError, OSError, KeyError, TypeError, ValueError):
        pass  # a file of that name with something else in it
    return None


def _numbers(option: str, text: str | None, kind: Any) -> list[Any] | None:
    if text is None:
        return None
    try:
        return [kind(part.strip()) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{option} takes a number, or several separated by commas; got {text!r}") from None


def _share(text: str) -> float:
    """
    >>> _share("50%"), _share("0.5")
    (0.5, 0.5)
    """
    return float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)


def _run(
    setup: Setup,
    out: Path,
    model: Any,
    tokenizer: Any,
    train_task: Any,
    test_task: Any,
    options: dict[str, Any],
    scratch: tuple[int, float],
) -> dict[str, Any]:
    """Train, save the model of every stage and of the last one in the run directory, and write the results."""
    from headcount.cli.command_run import run_of
    from headcount.cli.console import progress
    from headcount.cli.model_loading import save_in, saved_precision
    from headcount.gates import train_gates

    precision = saved_precision(setup.model, model) if setup.dtype == "auto" else None
    stated = {**options, "settings": vars(options["settings"]), "roles": None, "scratch": scratch}
    with run_of(setup, "gates", model, [task for task in (train_task, test_task) if task], **stated) as run:
        with progress("training gates") as bar:
            gated = train_gates(
                model, train_task, test_task, **options, run=run.directory,
                on_stage=lambda stage, smaller: save_in(
                    precision, smaller, out / "stages" / stage.name, tokenizer=tokenizer
                ),
                precision=precision,
                progress=lambda what, share: bar(share, what),
            )  # fmt: skip
        evidence = gated.evidence(Path(setup.own["test"] or setup.own["data"]).name, setup.own["command_line"])
        path = save_in(precision, gated.model, out / "model", tokenizer=tokenizer, evidence=evidence)
        content, report = gated.to_json(), gated.report(path.as_posix())
        if scratch[0]:
            content["from_scratch"] = _from_scratch(gated, train_task, test_task, options, scratch, out, tokenizer)
            report += f"\n{_scratch_in_words(content['from_scratch'], gated.metric)}"
        return run.finish({"model": setup.model, **content, "path": path.as_posix(), "report": report})


def _from_scratch(
    gated: Any,
    train_task: Any,
    test_task: Any,
    options: dict[str, Any],
    scratch: tuple[int, float],
    out: Path,
    tokenizer: Any,
) -> dict[str, Any]:
    """V19's comparison: the layout that the gates found, trained from random weights."""
    from headcount.cli.console import progress
    from headcount.evaluation import evaluate
    from headcount.pruning import hold_out
    from headcount.stats import change_bounds
    from headcount.surgery import save
    from headcount.training import fresh_copy, recover

    settings = options["settings"]
    rest, test, _ = hold_out(train_task, test_task, settings.seed, options["overlap"])
    train, select, _ = hold_out(rest, None, settings.seed)  # the epoch is chosen on neither training nor test data
    fresh = fresh_copy(gated.model, settings.seed)
    recovery = Recovery(scratch[0], lr=scratch[1], tokens=settings.tokens, distill=0, hidden=0, seed=settings.seed)
    with progress("training from scratch") as bar:
        recover(fresh, train, select, recovery, directory=out / "from-scratch-state", progress=bar)
    path = save(fresh, out / "from-scratch", tokenizer=tokenizer)
    ours, theirs = evaluate(gated.model, test).of(), evaluate(fresh, test).of()
    low, high = change_bounds(ours, theirs[None], test.metric)
    after = float(test.metric.of(theirs))
    return {
        "after": after,
        "change": after - gated.after,
        "low": float(low[0]),
        "high": float(high[0]),
        "epochs": scratch[0],
        "selected_on": len(select),
        "path": path.as_posix(),
    }


def _scratch_in_words(result: dict[str, Any], metric: Any) -> str:
    from headcount.cli.console import number, signed

    change, low, high = (signed(result[name], metric) for name in ("change", "low", "high"))
    return (
        f"The same layout from random weights, at most {counted(result['epochs'], 'epoch')}, the best chosen on "
        f"{result['selected_on']:,} other examples: {metric.name} {number(result['after'], metric)} "
        f"({change} against the gates, 95% interval {low} to {high})"
    )
