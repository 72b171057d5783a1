"""`headcount ablate MODEL --data …`: turn off every head, or all but one per layer, and test what changes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headcount.cli.setup import Setup, command


def register(app: typer.Typer) -> None:
    command(app, "ablate", sharded=True)(ablate)


def ablate(
    setup: Setup,
    data: Annotated[str, typer.Option("--data", help="csv, tsv, jsonl, parquet or text file, or hub id.")],
    mode: Annotated[str, typer.Option("--mode", help="each (one head off) or all-but-one (per layer).")] = "each",
    select_data: Annotated[str | None, typer.Option("--select-data", help="all-but-one: choose heads here.")] = None,
    select_target_data: Annotated[str | None, typer.Option("--select-target-data", help="Its targets.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only these: encoder,decoder,cross…")] = None,
    layers: Annotated[str | None, typer.Option("--layers", help="Only these: 0,3-5")] = None,
    fill: Annotated[str, typer.Option("--fill", help="A silent head puts out zero, or its mean output.")] = "zero",
    alpha: Annotated[float, typer.Option("--alpha", min=0.0, max=1.0, help="Significance level.")] = 0.05,
    resamples: Annotated[int | None, typer.Option("--resamples", min=1, help="Bootstrap resamples; M19: 1000.")] = None,
) -> None:
    """Turn off every head, one at a time, and test what changes (M19, section 3).

    Examples:

      headcount ablate ./model --data dev.tsv --out run

      headcount ablate ./translator --data val.en --target-data val.fr --kind cross

      headcount ablate ./model --data dev.tsv --mode all-but-one --select-data train.tsv --limit 1000
    """
    from headcount.ablation import ablate_all_but_one, ablate_each
    from headcount.cli.console import each_table, layers_table, print_json, progress
    from headcount.cli.loading import run_of
    from headcount.errors import HeadcountError, unknown

    if mode not in ("each", "all-but-one"):
        raise HeadcountError(unknown("mode", mode, ("each", "all-but-one")))
    if select_data is not None and mode == "each":
        raise HeadcountError("--select-data chooses the one head that stays: it needs --mode all-but-one")
    model, tokenizer = setup.load_model()
    task = setup.load_task(data, tokenizer, model)
    chosen: Any = {"kinds": _names(kind), "layers": _numbers(layers), "fill": fill}
    tested: Any = {"alpha": alpha, "resamples": resamples}
    common = {"model": setup.model, "mode": mode, "fill": fill}
    if mode == "each":
        with run_of(setup, "ablate", model, [task], mode=mode, **chosen) as run:
            with progress("ablating") as bar:
                ablation = ablate_each(model, task, run=run.directory, progress=bar, **chosen, **tested)
            result = run.finish({**common, **ablation.to_json(alpha)})
        table = each_table(result, task.metric, alpha)
    else:
        select = None
        if select_data is not None:
            select = setup.load_other(select_data, tokenizer, model, select_target_data, "--select-target-data")
        tasks = [task] if select is None else [task, select]
        with run_of(setup, "ablate", model, tasks, mode=mode, **chosen) as run:
            with progress("ablating") as bar:
                kept = ablate_all_but_one(model, task, select, run=run.directory, progress=bar, **chosen, **tested)
            result = run.finish({**common, **kept.to_json()})
        table = layers_table(result, task.metric, alpha)
    print_json(result) if setup.as_json else table()


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _numbers(text: str | None) -> list[int] | None:
    """Layers such as `0,3-5`."""
    from headcount.errors import HeadcountError

    if text is None:
        return None
    numbers: list[int] = []
    for part in _names(text) or []:
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise HeadcountError(f"--layers {text}: {part!r} is neither a layer nor a range; write 0,3-5")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers
