"""M19 figures 3 to 6: what is left of the score as heads are pruned, in three orders, by kind, and during training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from recipes.reproduce.figures import Line, curves, file_name, metric_name, percent, score, table
from recipes.reproduce.running import Results

KEPT = 0.95  # of the whole model's score: "without noticeable loss", which M19 judges by eye
# What M19 published.
PRUNABLE = {"WMT": 0.2, "MNLI": 0.4, "SST-2": 0.6, "CoLA": 0.5, "MRPC": 0.5}  # figures 3 and 6, read off the curves
KINDS = "Enc-Dec collapses beyond 60% pruned; Enc-Enc and Dec-Dec keep about 30 of 36 BLEU with 20% of their heads"
DYNAMICS = (
    "IWSLT14 de-en: at epochs 1 and 2 the score falls linearly with pruning, whatever the importance; the distinction "
    "emerges between epochs 2 and 10; from epoch 10, 40% can be pruned while 85-90% of BLEU is kept"
)
COLOURS = {"gradient": 0, "raw gradient": 3, "oracle": 1, "random": 6, "encoder": 0, "decoder": 2, "cross": 1}


def kept(point: Mapping[str, Any], run: Mapping[str, Any]) -> float:
    """The share of the whole model's score that a point keeps; its inverse if lower scores are better."""
    relative = point["relative"]
    return relative if run["higher_is_better"] else 1 / relative if relative else float("inf")


def prunable(curve: Mapping[str, Any], run: Mapping[str, Any]) -> float:
    """The largest share of heads that can be pruned while every step up to there keeps 95% of the score."""
    share = 0.0
    for point in curve["points"]:
        if not kept(point, run) >= KEPT:
            break
        share = point["pruned"]
    return share


def at_share(curve: Mapping[str, Any], share: float) -> Mapping[str, Any]:
    """The first point with at least this share of the heads pruned (to a rounding of whole heads)."""
    return next((one for one in curve["points"] if one["pruned"] >= share - 0.01), curve["points"][-1])


def kept_interval(point: Mapping[str, Any], curve: Mapping[str, Any], run: Mapping[str, Any]) -> tuple[float, float]:
    """The 95% interval of the share of the score that a point keeps; of its inverse if lower scores are better."""
    whole = curve["points"][0]["score"]
    low, high = (1 + point[end] / whole for end in ("change_low", "change_high"))
    return (low, high) if run["higher_is_better"] else (1 / high, 1 / max(low, 1e-9))


def label(curve: Mapping[str, Any]) -> str:
    """The order of a curve: its method, and whether scores were divided by their norm in each layer."""
    return "raw gradient" if curve["method"] == "gradient" and not curve.get("normalized", True) else curve["method"]


def height(curve: Mapping[str, Any], run: Mapping[str, Any]) -> float:
    """The mean share of the score that is kept over the curve, without its ends: how good an order is."""
    inner = [kept(point, run) for point in curve["points"] if 0 < point["pruned"] < 1]
    return float(np.mean(inner)) if inner else float("nan")


def orders(results: Results, figures: dict[str, str]) -> str:
    """Curves by importance with and without l2 normalisation, oracle, and random orders with their band."""
    rows, pictures = [], []
    names = ("gradient", "raw gradient", "oracle")
    for name, run in results.of("curve").items():
        found = {label(curve): curve for curve in reversed(run["curves"])}
        randoms = [curve for curve in run["curves"] if curve["method"] == "random"]
        drawn = {key: found[key] for key in names if key in found}
        if randoms:
            drawn["random"] = mean_curve(randoms)
        _draw(name, "curve", run, drawn, figures, pictures, band=randoms)
        cells = [
            f"{percent(prunable(found[key], run))} ({height(found[key], run):.2f})" if key in found else ""
            for key in names
        ]
        heights = [height(curve, run) for curve in randoms]
        band = ""
        if heights:
            band = f"{np.mean(heights):.2f} ({min(heights):.2f} to {max(heights):.2f}, {len(heights)} orders)"
        paper = PRUNABLE.get(_data(name), PRUNABLE["WMT"] if results.experiments[name].translates else None)
        rows.append([name, run["n"], *cells, band, "" if paper is None else percent(paper)])
    columns = ["", "n", "gradient", "raw gradient", "oracle", "random", "M19, gradient, by eye"]
    said = (
        f"Share of the heads that can be pruned while every step keeps {KEPT:.0%} of the score; in brackets the mean "
        "share of the score that is kept over the whole curve. Random: that mean, over orders, with the lowest and the "
        "highest. Raw gradient: M19's importance without l2 normalisation within each layer."
    )
    why = (
        "Oracle: the order of the score's change with each head off, measured on the same number of other examples. "
        "This is mostly chance if single heads change little, and it ignores heads that stand in for each other. "
        f"M19 found the gradient's order to be better than the oracle's{_exceptions(results)}."
    )
    return f"{said}\n\n{table(columns, rows)}\n\n{_over_seeds(results)}{why}\n\n" + "\n".join(pictures)


def _data(name: str) -> str:
    """
    >>> _data("CoLA seed 2"), _data("SST-2 base")
    ('CoLA', 'SST-2')
    """
    return name.partition(" seed ")[0].removesuffix(" base")


def _over_seeds(results: Results) -> str:
    """What can be pruned of models of the same data that were trained with different seeds."""
    found: dict[str, list[float]] = {}
    for name, run in results.of("curve").items():
        if not name.endswith(" base"):
            found.setdefault(_data(name), []).append(prunable(run["curves"][0], run))
    said = [f"{name} {', '.join(map(percent, shares))}" for name, shares in found.items() if len(shares) > 1]
    return f"By the gradient, over seeds of the training: {'; '.join(said)}.\n\n" if said else ""


def scored(results: Results, figures: dict[str, str]) -> str:
    """Curves by importance from few and from many examples."""
    rows = []
    for name, runs in results.runs.items():
        for part in (part for part in runs if part.startswith("scored-")):
            run = runs[part]
            number = run["signature"]["tasks"][0]["n"]
            cells = [f"{percent(prunable(curve, run))} ({height(curve, run):.2f})" for curve in run["curves"]]
            rows.append([name, run["n"], f"{number:,}", *cells])
    columns = ["", "n", "scored on", "gradient", "raw gradient"]
    return f"Cells as in the table before.\n\n{table(columns, rows)}"


def beams(results: Results, figures: dict[str, str]) -> str:
    """The share of the score that is kept with beam search, beside that of greedy decoding."""
    rows = []
    for name, run in results.of("beam").items():
        greedy = results.of("curve").get(name)
        sides = [("beam search", run["curves"][0], run)]
        if greedy is not None:
            sides.insert(0, ("greedy", greedy["curves"][0], greedy))
        for how, curve, own in sides:
            whole = f"{metric_name(own)} {score(curve['points'][0]['score'], own)}"
            cells = [percent(kept(at_share(curve, share), own)) for share in (0.2, 0.4, 0.6, 0.8)]
            rows.append([name, how, own["n"], whole, *cells])
    columns = ["", "decoding", "n", "whole model", "20% pruned", "40% pruned", "60% pruned", "80% pruned"]
    return f"Share of the score that is kept, pruned by the gradient; 5 beams, as M19.\n\n{table(columns, rows)}"


def mean_curve(several: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of curves in other orders, point by point."""
    points = zip(*(curve["points"] for curve in several), strict=True)
    keys = ("pruned", "score", "relative")
    return {"points": [{key: float(np.mean([point[key] for point in some])) for key in keys} for some in points]}


def _exceptions(results: Results) -> str:
    """Where the oracle's order keeps more of the score than the gradient's."""
    found = []
    for name, run in results.of("curve").items():
        heights = {label(curve): height(curve, run) for curve in run["curves"]}
        if heights.get("oracle", 0.0) > heights["gradient"]:
            found.append(f"{name} ({heights['oracle']:.2f}, gradient {heights['gradient']:.2f})")
    return f"; here it is not for {', '.join(found)}" if found else ", as it is here"


def kinds(results: Results, figures: dict[str, str]) -> str:
    """Encoder, decoder and cross-attention pruned on their own (figure 4)."""
    rows, pictures, less = [], [], []
    for name, run in results.of("kinds").items():
        found = {curve["kind"]: curve for curve in run["curves"]}
        _draw(name, "kinds", run, found, figures, pictures)
        for kind, curve in found.items():
            left = {round(point["pruned"], 1): kept(point, run) for point in curve["points"]}
            cells = [percent(left[share]) if share in left else "" for share in (0.4, 0.6, 0.8, 1.0)]
            rows.append([name, kind, run["n"], *cells, f"{height(curve, run):.2f}"])
            if kind == "decoder" and left.get(0.8, 1.0) < 30 / 36:
                less.append(name)
    columns = ["", "kind", "n", "40% pruned", "60% pruned", "80% pruned", "all pruned", "mean kept"]
    why = f" The decoders of {', '.join(less)} keep less: their heads have 16 dimensions, M19's have 64."
    return f"{table(columns, rows)}\n\nM19: {KINDS}.{why if less else ''}\n\n" + "\n".join(pictures)


def _draw(
    name: str,
    what: str,
    run: dict[str, Any],
    found: dict[str, Any],
    figures: dict[str, str],
    pictures: list[str],
    band: list[dict[str, Any]] | None = None,
) -> None:
    """band: curves whose lowest and highest score at each point are drawn as dashed lines."""
    file = f"{file_name(name)}-{what}.svg"
    by_log = run["metric"] == "perplexity"  # which grows a thousandfold
    drawn = math.log if by_log else float
    lines = []
    if band:
        points = list(zip(*(curve["points"] for curve in band), strict=True))
        for end, pick in (("lowest", min), ("highest", max)):
            edge = [(some[0]["pruned"], drawn(pick(point["score"] for point in some))) for some in points]
            lines.append(Line(f"random, {end}", edge, COLOURS["random"], dashed=True))
    lines += [
        Line(key, [(point["pruned"], drawn(point["score"])) for point in curve["points"]], COLOURS.get(key, 3))
        for key, curve in found.items()
    ]
    figures[file] = curves(lines, f"log {metric_name(run)}" if by_log else metric_name(run))
    pictures.append(f"![{name}: {metric_name(run)} as heads are pruned, by {', '.join(found)}](figures/{file})")


def at(checkpoint: Mapping[str, Any], share: float, method: str, run: Mapping[str, Any]) -> float:
    """The share of a checkpoint's own score that is kept with this share of the heads pruned."""
    points = [point for point in checkpoint["points"] if point["method"] == method]
    return kept(min(points, key=lambda point: abs(point["pruned"] - share)), run)


def distinct_shots(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The checkpoints, without the last if it has the weights of the one before."""
    *earlier, last = run["checkpoints"]
    same = bool(earlier) and earlier[-1]["importance"] == last["importance"]
    return earlier if same else [*earlier, last]


def some(shots: list[Any], most: int = 6) -> list[Any]:
    """At most `most` of them, from the first to the last, since more colours cannot be told apart.

    >>> some(list(range(11))), some([1, 2])
    ([0, 2, 4, 6, 8, 10], [1, 2])
    """
    if len(shots) <= most:
        return shots
    return [shots[round(place * (len(shots) - 1) / (most - 1))] for place in range(most)]


def dynamics(results: Results, figures: dict[str, str]) -> str:
    """Curves of every checkpoint relative to its own score, by importance and in random order."""
    said: list[str] = []
    both = [(name, part, run) for part in ("track", "track-loss") for name, run in results.of(part).items()]
    for name, part, run in sorted(both, key=lambda one: list(results.runs).index(one[0])):
        shots = distinct_shots(run)
        agree = [*(f"{r:.2f}" for r in run["with_last"][: len(shots) - 1]), ""]
        rows = [
            [
                *(shot["name"], f"{metric_name(run)} {score(shot['base'], run)}"),
                *(percent(at(shot, share, method, run)) for share in (0.4, 0.6) for method in ("gradient", "random")),
                *(f"{shot['advantage']:+.2f}", r),
            ]
            for shot, r in zip(shots, agree, strict=True)
        ]
        lines = [
            Line(
                f"{shot['name']}{', random' if method == 'random' else ''}",
                [(point["pruned"], kept(point, run)) for point in shot["points"] if point["method"] == method],
                place,
                method == "random",
            )
            for place, shot in enumerate(some(shots))
            for method in ("gradient", "random")
        ]
        file = f"{file_name(name)}-{part}.svg"
        figures[file] = curves(lines, "share of its own score", y_percent=True)
        columns = ["", "whole", "40% pruned", "random", "60% pruned", "random", "advantage", "r with last"]
        what = ", teacher-forced loss (kept: the whole model's loss as a share)" if part == "track-loss" else ""
        title = f"{name}, {run['n']} sentences{what}:"
        picture = f"![{name}: curves of checkpoints{', loss' * bool(what)}](figures/{file})"
        said += [title, table(columns, rows), run["in_words"], picture]
    how = (
        "Advantage: how much more of the score is kept by importance than in random order (the mean of several), mean "
        "over the curve."
    )
    return "\n\n".join([*said, how, f"M19, {DYNAMICS}."])
