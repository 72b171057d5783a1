"""`headcount curve`: the metric as more and more heads are removed; `headcount track`: that, for many checkpoints."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

import typer

from headcount.cli.importance import Method
from headcount.cli.options import ScoreTargets, Setup, command, listed, one_of, usage
from headcount.cli.prune import OverlapOption
from headcount.errors import counted
from headcount.heads import counts


@command(sharded=True)
def curve(
    setup: Setup,
    score_data: Annotated[str, typer.Option("--score-data", help="Data to score heads on.")],
    data: Annotated[str, typer.Option("--data", help="Other data, to evaluate the pruned models on.")],
    score_target_data: ScoreTargets = None,
    score_limit: Annotated[
        int | None,
        typer.Option("--score-limit", min=1, help="Score heads on a random sample of this size; default --limit."),
    ] = None,
    methods: Annotated[
        str, typer.Option("--methods", help="gradient,oracle,relevance,confidence,random…")
    ] = "gradient",
    step: Annotated[float, typer.Option("--step", help="A share of the heads (0.1), or a number of them.")] = 0.1,
    kinds: Annotated[
        str | None, typer.Option("--kinds", help="encoder,cross… one curve each; `each`: all kinds.")
    ] = None,
    keep_at_least: Annotated[int, typer.Option("--keep-at-least", min=0, help="Heads to keep in every site.")] = 0,
    order: Annotated[
        Literal["normalized", "raw", "both"] | None,
        typer.Option(
            "--order",
            help="Divide scores by their norm in each layer (M19's gradient, the default there), or not; both: a curve "
            "of each for gradient.",
        ),
    ] = None,
    orders: Annotated[int, typer.Option("--orders", min=1, help="How many random orders, a curve each.")] = 1,
    reestimate: Annotated[
        bool, typer.Option("--reestimate", help="Score the remaining heads again after each step.")
    ] = False,
    overlap: OverlapOption = "refuse",
) -> None:
    """Prune step by step, the least important heads first, and measure the model that is left (M19, section 4).

    Examples:

      headcount curve ./model --score-data train.tsv --data dev.tsv --methods gradient,oracle,random --out run

      headcount curve ./translator --score-data train.en --score-target-data train.fr
      --data val.en --target-data val.fr --kinds each
    """
    names = listed(methods) or []
    if not names or len(set(names)) < len(names):
        raise typer.BadParameter(f"--methods {methods}: name each method once")
    for name in names:
        one_of("--methods", get_args(Method))(name)

    with usage():
        counts(1, step)

    from headcount.cli.command_run import run_of
    from headcount.cli.console import messages, print_json, progress
    from headcount.pruning import pruning_curve, resolve_overlap
    from headcount.scoring import importance as score
    from headcount.structure import anatomy

    model, tokenizer = setup.load_model()
    found = anatomy(model)
    chosen = list(found.kinds) if kinds == "each" else listed(kinds)
    found.heads_of(chosen)
    scoring = setup.load_other(score_data, tokenizer, model, score_target_data, "--score-target-data", score_limit)
    task = setup.load_task(data, tokenizer, model)
    task, remarks = resolve_overlap(scoring.keys(), task, "the score data", overlap)
    settings: dict[str, Any] = {
        "methods": names, "step": step, "kinds": chosen, "keep_at_least": keep_at_least, "reestimate": reestimate,
        "overlap": overlap, "order": order, "orders": orders,
    }  # fmt: skip
    with run_of(setup, "curve", model, [scoring, task], **settings) as run:
        scores = []
        for name in names:
            with progress(f"scoring by {name}") as bar:
                if name == "random":
                    scores += [score(model, scoring, name, seed=setup.seed + place) for place in range(orders)]
                    continue
                found_scores = score(model, scoring, name, run=run.directory, progress=bar)
                own = found_scores.normalize
                ways = {None: [own], "both": [True, False] if own else [False]}.get(order, [order == "normalized"])
                scores += [replace(found_scores, normalize=way) for way in ways]
        with progress("pruning") as bar:
            curves = pruning_curve(
                model, task, scores, step, chosen, keep_at_least=keep_at_least, reestimate=reestimate,
                score_task=scoring, overlap=overlap, run=run.directory, progress=bar,
            )  # fmt: skip
        result = run.finish(
            {
                "model": setup.model,
                **task.metric.facts(),
                "n": len(task),
                "base": curves[0].points[0].score,
                "curves": [one.to_json() for one in curves],
                "remarks": remarks,
            }
        )
    for remark in remarks:
        messages.print(remark, style="dim", markup=False)
    print_json(result) if setup.as_json else _print(result, task.metric)


def _print(result: dict[str, Any], metric: Any) -> None:
    from headcount.cli.console import console, number, print_table

    ways = {(one["method"], one["normalized"]) for one in result["curves"]}
    names = []
    for one in result["curves"]:
        way = ", normalized" if one["normalized"] else ", raw"
        both = {(one["method"], True), (one["method"], False)} <= ways
        names.append(f"{one['method']}{way if both else ''}{', ' + one['kind'] if one['kind'] else ''}")
    rows = []
    shares = sorted({round(point["pruned"], 9) for one in result["curves"] for point in one["points"]})
    for share in shares:
        cells = []
        for one in result["curves"]:
            point = next((p for p in one["points"] if round(p["pruned"], 9) == share), None)
            cells.append("" if point is None else _cell(point, metric, number))
        rows.append([f"{share:.0%}", *cells])
    title = f"{result['model']}, {metric.name} on {counted(result['n'], 'example')}"
    print_table(title, ["heads removed", *names], rows, left=0)
    console.print("In brackets the 95% interval of the score.")


def _cell(point: dict[str, Any], metric: Any, number: Any) -> str:
    return f"{number(point['score'], metric)} [{number(point['low'], metric)} {number(point['high'], metric)}]"


@command(sharded=True)
def track(
    setup: Setup,
    model: Annotated[list[str], typer.Argument(metavar="CKPT...", help="Checkpoints of one training run.")],
    score_data: Annotated[str, typer.Option("--score-data", help="Data to score heads on.")],
    data: Annotated[str, typer.Option("--data", help="Other data, to evaluate the pruned checkpoints on.")],
    score_target_data: ScoreTargets = None,
    step: Annotated[float, typer.Option("--step", help="A share of the heads (0.1), or a number of them.")] = 0.1,
    orders: Annotated[int, typer.Option("--orders", min=1, help="How many random orders are averaged.")] = 3,
    overlap: OverlapOption = "refuse",
) -> None:
    """Score and prune every checkpoint, by importance and in random order (M19, section 6).

    Checkpoints in one directory are sorted by their numbers: epoch-2 comes before epoch-10.

    Examples:

      headcount track run/checkpoints/epoch-* --score-data train.tsv --data dev.tsv --out tracked

      headcount track run/epoch-1 run/epoch-5 run --score-data train.en --score-target-data train.fr
      --data val.en --target-data val.fr --limit 200 --step 0.2 --json
    """
    with usage():
        counts(1, step)

    from headcount import dynamics
    from headcount.cli.command_run import run_of
    from headcount.cli.console import messages, print_json, progress
    from headcount.cli.model_loading import load_model
    from headcount.pruning import resolve_overlap

    paths = dynamics.in_order(model)
    dynamics.refuse_different(paths)
    setup.model = paths[-1]
    last, tokenizer = setup.load_model()
    scoring = setup.load_other(score_data, tokenizer, last, score_target_data, "--score-target-data")
    task = setup.load_task(data, tokenizer, last)
    task, remarks = resolve_overlap(scoring.keys(), task, "the score data", overlap)
    settings = {"checkpoints": paths, "step": step, "orders": orders, "overlap": overlap}
    with run_of(setup, "track", last, [scoring, task], **settings) as run, progress("tracking") as bar:
        found = dynamics.track(
            paths, task, scoring, step=step, orders=orders, seed=setup.seed, overlap=overlap,
            run=run.directory, loading=lambda path: load_model(path, setup.device, setup.dtype)[0], progress=bar,
        )  # fmt: skip
        names = {"model": paths[-1], **task.metric.facts(), "n": len(task), "n_score": len(scoring)}
        result = run.finish({**names, **found.to_json(), "remarks": remarks})
    for remark in remarks:
        messages.print(remark, style="dim", markup=False)
    print_json(result) if setup.as_json else _print_track(result, task.metric)


def _print_track(result: dict[str, Any], metric: Any) -> None:
    from headcount.cli.console import console, number, print_table

    title = f"{result['model']}: percent of each checkpoint's own {metric.name}, {counted(result['n'], 'example')}"
    columns = [f"{one['name']}\n{number(one['base'], metric)}" for one in result["checkpoints"]]
    rows = []
    for share in dict.fromkeys(point["pruned"] for point in result["checkpoints"][0]["points"]):
        cells = []
        for one in result["checkpoints"]:
            here = {point["method"]: point for point in one["points"] if point["pruned"] == share}
            cells.append(" / ".join(_known(100 * here[method]["relative"], ".0f") for method in ("gradient", "random")))
        rows.append([f"{share:.0%}", *cells])
    rows.append(["advantage", *(_known(one["advantage"], "+.2f") for one in result["checkpoints"])])
    if len(result["checkpoints"]) > 1:
        rows.append(["r with last", *(f"{r:.2f}" for r in (*result["with_last"], 1.0))])
    print_table(title, ["heads removed", *columns], rows, left=0)
    console.print("Heads removed by importance / in random order. " + result["in_words"], soft_wrap=True)


def _known(value: float, form: str) -> str:
    """A number, or a dash: of a checkpoint that scores 0, no share can be taken."""
    return "\u2013" if math.isnan(value) else f"{value:{form}}"
