"""M19 figures 3, 6 and 4: what is left of the score as more and more heads go, in three orders and by kind."""

from __future__ import annotations

from typing import Any

import numpy as np
from recipes.reproduce import published
from recipes.reproduce.figures import Line, curves
from recipes.reproduce.markdown import metric_name, percent, table
from recipes.reproduce.one_head import _file
from recipes.reproduce.results import Results

KEPT = 0.95  # of the whole model's score: "without noticeable loss", where M19 judges by eye
COLOURS = {"gradient": 0, "oracle": 1, "random": 6, "encoder": 0, "decoder": 2, "cross": 1}


def prunable(curve: dict[str, Any]) -> float:
    """The largest share of heads that can go while every step up to there keeps 95% of the score."""
    share = 0.0
    for point in curve["points"]:
        if not point["relative"] >= KEPT:
            break
        share = point["pruned"]
    return share


def height(curve: dict[str, Any]) -> float:
    """The mean share of the score that is left over the curve, without its ends: what an order is worth."""
    inner = [point["relative"] for point in curve["points"] if 0 < point["pruned"] < 1]
    return float(np.mean(inner)) if inner else float("nan")


def orders(results: Results, figures: dict[str, str]) -> str:
    """Curves in gradient, oracle and random order (figures 3 and 6)."""
    rows, pictures = [], []
    for name, run in results.of("curve").items():
        found = {curve["method"]: curve for curve in run["curves"]}
        _draw(name, "curve", run, found, figures, pictures)
        cells = [f"{percent(prunable(curve))} ({height(curve):.2f})" for curve in found.values()]
        paper = published.PRUNABLE.get(
            name, published.PRUNABLE["WMT"] if results.experiments[name].translates else None
        )
        rows.append([name, run["n"], *cells, "" if paper is None else percent(paper)])
    columns = ["", "n", "gradient", "oracle", "random", "M19, gradient, by eye"]
    said = (
        f"Share of the heads that can go while {KEPT:.0%} of the score stays at every step; in brackets the mean share "
        "of the score that is left over the whole curve."
    )
    why = (
        "Oracle: the order of the score's change with each head off, measured on as many other examples. That is "
        "mostly chance where heads change little one by one, and says nothing of heads that stand in for each other. "
        f"M19 found the gradient's order the better one{_exceptions(results)}. Random is one order."
    )
    return f"{said}\n\n{table(columns, rows)}\n\n{why}\n\n" + "\n".join(pictures)


def _exceptions(results: Results) -> str:
    """Where another order leaves more of the score than the gradient's, and why that can be."""
    found = []
    for name, run in results.of("curve").items():
        heights = {curve["method"]: height(curve) for curve in run["curves"]}
        best = max(heights, key=lambda method: heights[method])
        if best != "gradient":
            found.append(f"{name} ({best} {heights[best]:.2f}, gradient {heights['gradient']:.2f})")
    if not found:
        return ", and so it is here"
    return (
        f"; here it is not for {', '.join(found)}: importance estimated on as few examples as a curve has (M19: the "
        "whole training or dev set) may miss heads that only some sentences need"
    )


def kinds(results: Results, figures: dict[str, str]) -> str:
    """Encoder, decoder and cross-attention pruned on their own (figure 4)."""
    rows, pictures, less = [], [], []
    for name, run in results.of("kinds").items():
        found = {curve["kind"]: curve for curve in run["curves"]}
        _draw(name, "kinds", run, found, figures, pictures)
        for kind, curve in found.items():
            left = {round(point["pruned"], 1): point["relative"] for point in curve["points"]}
            cells = [percent(left[share]) if share in left else "" for share in (0.4, 0.6, 0.8, 1.0)]
            rows.append([name, kind, run["n"], *cells, f"{height(curve):.2f}"])
            if kind == "decoder" and left.get(0.8, 1.0) < 30 / 36:
                less.append(name)
    columns = ["", "kind", "n", "40% pruned", "60% pruned", "80% pruned", "all pruned", "mean left"]
    why = (
        f" The decoders of {', '.join(less)} keep less than that: their heads have 16 dimensions where M19's have "
        "64, and less to spare."
    )
    return f"{table(columns, rows)}\n\nM19: {published.KINDS}.{why if less else ''}\n\n" + "\n".join(pictures)


def _draw(
    name: str, what: str, run: dict[str, Any], found: dict[str, Any], figures: dict[str, str], pictures: list[str]
) -> None:
    file = f"{_file(name)}-{what}.svg"
    lines = [
        Line(key, [(point["pruned"], point["score"]) for point in curve["points"]], COLOURS.get(key, 3))
        for key, curve in found.items()
    ]
    figures[file] = curves(lines, metric_name(run["metric"]))
    pictures.append(f"![{name}: {metric_name(run['metric'])} as heads go, by {', '.join(found)}](figures/{file})")
