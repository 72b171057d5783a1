"""`headcount ablate MODEL --data …`: turn off every head, or all but one per layer, and test what changes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from headcount.cli.options import SOURCES, Data, Fill, Setup, command, listed, option, usage
from headcount.errors import counted


@command(sharded=True)
def ablate(
    setup: Setup,
    data: Data,
    mode: Annotated[
        Literal["each", "all-but-one"], option("--mode", help="Turn off one head at a time, or all but one of a layer.")
    ] = "each",
    select_data: Annotated[
        str | None, option("--select-data", help="all-but-one: choose the heads on this data.")
    ] = None,
    select_target_data: Annotated[
        str | None, option("--select-target-data", panel=SOURCES, help="Targets of --select-data.")
    ] = None,
    kind: Annotated[str | None, option("--kinds", "--kind", help="Only these kinds: encoder,decoder,cross…")] = None,
    layers: Annotated[str | None, option("--layers", help="Only these layers: 0,3-5")] = None,
    fill: Fill = "zero",
    against: Annotated[
        str | None,
        option("--against", help="counterfactual: the corrupted texts, row by row as long as those of --data."),
    ] = None,
    draws: Annotated[
        int | None, option("--draws", min=1, help="resample: other examples whose outputs a head puts out; 4.")
    ] = None,
    alpha: Annotated[float, option("--alpha", min=0.0, max=1.0, help="Significance level.")] = 0.05,
    resamples: Annotated[int | None, option("--resamples", min=1, help="Bootstrap resamples; M19: 1000.")] = None,
    adaptive: Annotated[
        bool, option("--adaptive", help="Give each head examples only until it is missed, or within --margin.")
    ] = False,
    margin: Annotated[float | None, option("--margin", help="--adaptive: an acceptable loss, in points [1].")] = None,
) -> None:
    """Turn off every head, one at a time, and test what changes (M19, section 3).

    Examples:

      headcount ablate ./model --data dev.tsv --out run

      headcount ablate ./translator --data val.en --target-data val.fr --kinds cross

      headcount ablate ./model --data dev.tsv --mode all-but-one --select-data train.tsv --limit 1000

      headcount ablate ./gpt2 --data clean.tsv --fill counterfactual --against corrupted.tsv --metric logit_difference

      headcount ablate ./model --data train.tsv --adaptive --margin 2 --out run
    """
    if select_data is not None and mode == "each":
        raise typer.BadParameter("--select-data is for --mode all-but-one")
    if (against is not None) != (fill == "counterfactual"):
        raise typer.BadParameter("--fill counterfactual and --against go together: against holds the corrupted texts")
    if against is not None and select_data is not None:
        raise typer.BadParameter("--against has pairs for --data alone; leave out --select-data")
    if draws is not None and fill != "resample":
        raise typer.BadParameter("--draws is for --fill resample")
    if adaptive and mode != "each":
        raise typer.BadParameter("--adaptive is for --mode each: all-but-one needs all examples for every head")
    chosen: Any = {"kinds": listed(kind), "layers": _layers(layers), "fill": fill}
    tested: Any = {"alpha": alpha, "resamples": resamples}
    early: Any = {} if not adaptive and margin is None else {"adaptive": adaptive, "margin": margin}

    from headcount.ablation import AblationSettings, ablate_all_but_one, ablate_each
    from headcount.cli.command_run import run_of
    from headcount.cli.console import print_json, progress
    from headcount.evaluation import DRAWS

    drawn: Any = {} if fill != "resample" else {"draws": draws or DRAWS, "seed": setup.seed}
    with usage():
        AblationSettings(**tested, **early, fill=fill)
    if adaptive:  # which examples a head gets depends on all of these
        chosen |= {**early, "alpha": alpha, "seed": setup.seed}
        tested = {}
    model, tokenizer = setup.load_model()
    tasks = [setup.load_task(data, tokenizer, model)]
    if select_data is not None:
        tasks.append(setup.load_other(select_data, tokenizer, model, select_target_data, "--select-target-data"))
    pairs = None if against is None else setup.load_other(against, tokenizer, model, None, "--against")
    known = tasks if pairs is None else [*tasks, pairs]
    with run_of(setup, "ablate", model, known, mode=mode, **chosen, **drawn) as run:
        with progress("ablating") as bar:
            measure: Any = ablate_each if mode == "each" else ablate_all_but_one
            found = measure(model, *tasks, against=pairs, run=run.directory, progress=bar, **chosen, **drawn, **tested)
        answer = found.to_json(alpha) if mode == "each" else found.to_json()
        facts = {"model": setup.model, "mode": mode, "fill": fill, **drawn}
        result = run.finish({**facts, **({} if against is None else {"against": against}), **answer})
    if setup.as_json:
        print_json(result)
    else:
        show: Any = _print_layers if mode == "all-but-one" else _print_decisions if adaptive else _print_heads
        show(result, tasks[0].metric, alpha)


def _layers(text: str | None) -> list[int] | None:
    """Layers such as `0,3-5`.

    >>> _layers("0,3-5")
    [0, 3, 4, 5]
    """
    if text is None:
        return None
    numbers: list[int] = []
    for part in listed(text) or []:
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise typer.BadParameter(f"--layers {text}: {part!r} is neither a layer nor a range; write 0,3-5")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def _print_heads(result: dict[str, Any], metric: Any, alpha: float) -> None:
    """Every head's effect, the most harmful first."""
    from headcount.cli.console import console, print_table

    sign = 1 if metric.higher_is_better else -1
    rows = sorted(result["heads"], key=lambda row: (sign * row["change"], row["p"]))
    marked = [place for place, row in enumerate(rows) if row["p_holm"] < alpha]
    print_table(
        _title(result),
        ["head", metric.name, "change", "95% interval", "p", "p (Holm)", "p (BH)"],
        [
            [f"{row['head']}{' *' if place in marked else ''}", *_change(row, metric)]
            + [f"{row[name]:.3g}" for name in ("p", "p_holm", "p_bh")]
            for place, row in enumerate(rows)
        ],
        drop=["p (BH)", metric.name, "p", "p (Holm)"],
        bold=marked,
    )
    changes = [sign * row["change"] for row in rows if row["p_holm"] < alpha]
    console.print(
        f"Turning off one head makes the model significantly worse for {sum(change < 0 for change in changes)} of "
        f"{counted(len(rows), 'head')}, and better for {sum(change > 0 for change in changes)} ({result['test']}, "
        f"Holm-corrected p < {alpha:g}); uncorrected, {sum(row['p'] < alpha for row in rows)} would seem to matter."
    )


def _print_decisions(result: dict[str, Any], metric: Any, alpha: float) -> None:
    """What was decided about every head, missed heads first, and after how many examples."""
    from headcount.cli.console import console, print_table

    order = ("missed", "undecided", "within")
    sign = 1 if metric.higher_is_better else -1
    rows = sorted(result["heads"], key=lambda row: (order.index(row["decision"]), sign * row["change"]))
    marked = [place for place, row in enumerate(rows) if row["decision"] == "missed"]
    print_table(
        _title(result),
        ["head", "decision", "change", f"{1 - alpha:.0%} interval", "examples", "p (corrected)"],
        [
            [
                f"{row['head']}{' *' if place in marked else ''}",
                row["decision"],
                *_change(row, metric)[1:],
                f"{row['examples']:,}",
                f"{row['p_holm']:.3g}",
            ]
            for place, row in enumerate(rows)
        ],
        drop=["p (corrected)", "examples"],
        bold=marked,
    )
    numbers = [sum(row["decision"] == name for row in rows) for name in ("missed", "within", "undecided")]
    margin = f"{result['margin']:g}%" if metric.relative else counted(result["margin"], "point")
    share = result["evaluated"] / (len(rows) * result["available"])
    console.print(
        f"Of {counted(len(rows), 'head')}: {numbers[0]} significantly missed, {numbers[1]} shown to cost at "
        f"most {margin}, and {numbers[2]} undecided. With {1 - alpha:.0%} confidence, all intervals and decisions "
        f"are right ({result['test']}). The sweep evaluated {share:.0%} of what a full one would."
    )


def _print_layers(result: dict[str, Any], metric: Any, alpha: float) -> None:
    """Each layer reduced to its best head."""
    from headcount.cli.console import console, print_table

    marked = [place for place, row in enumerate(result["layers"]) if row["p"] < alpha]
    print_table(
        _title(result),
        ["layer", "head kept", metric.name, "change", "95% interval", "p"],
        [
            [
                f"{row['kind']}.{row['layer']}{' *' if place in marked else ''}",
                row["best"],
                *_change(row, metric),
                f"{row['p']:.3g}",
            ]
            for place, row in enumerate(result["layers"])
        ],
        drop=[metric.name, "p"],
        bold=marked,
    )
    if result["chosen_apart"]:
        console.print("The heads were chosen on other data than they are tested on.")
    else:
        console.print(
            f"{result['shared']:,} of the {result['n']:,} examples that the heads are tested on were also used to "
            "choose the best of many, so p is optimistic; --select-data chooses them on other data."
        )


def _change(row: dict[str, Any], metric: Any) -> list[str]:
    """The cells of the score, its change and the interval of the change."""
    from headcount.cli.console import number, signed

    low, high = signed(row["low"], metric), signed(row["high"], metric)
    return [number(row["score"], metric), signed(row["change"], metric), f"{low} {high}"]


def _title(result: dict[str, Any]) -> str:
    return f"{result['model']}, {result['metric']} {result['base']:.4g}, {counted(result['n'], 'example')}"
