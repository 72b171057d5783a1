"""M19 figure 5 and table 4: pruning during training, and speed."""

from __future__ import annotations

from typing import Any

from recipes.reproduce import published
from recipes.reproduce.figures import Line, curves
from recipes.reproduce.markdown import metric_name, percent, score, table
from recipes.reproduce.one_head import _file
from recipes.reproduce.results import Results


def at(checkpoint: dict[str, Any], share: float, method: str) -> float:
    """The share of a checkpoint's own score that is left with so many heads gone."""
    points = [point for point in checkpoint["points"] if point["method"] == method]
    return min(points, key=lambda point: abs(point["pruned"] - share))["relative"]


def distinct_shots(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The checkpoints, without a last one that has the weights of the one before it."""
    *earlier, last = run["checkpoints"]
    same = bool(earlier) and earlier[-1]["importance"] == last["importance"]
    return earlier if same else [*earlier, last]


def some(shots: list[Any], most: int = 6) -> list[Any]:
    """At most so many of them, from the first to the last: as many colours can be told apart.

    >>> some(list(range(11))), some([1, 2])
    ([0, 2, 4, 6, 8, 10], [1, 2])
    """
    if len(shots) <= most:
        return shots
    return [shots[round(place * (len(shots) - 1) / (most - 1))] for place in range(most)]


def dynamics(results: Results, figures: dict[str, str]) -> str:
    """Curves of every checkpoint relative to its own score, by importance and in random order."""
    said: list[str] = []
    for name, run in results.of("track").items():
        shots, metric = distinct_shots(run), run["metric"]
        agree = [*(f"{r:.2f}" for r in run["with_last"][: len(shots) - 1]), ""]
        rows = [
            [
                *(shot["name"], f"{metric_name(metric)} {score(shot['base'], metric)}"),
                *(percent(at(shot, share, method)) for share in (0.4, 0.6) for method in ("gradient", "random")),
                *(f"{shot['advantage']:+.2f}", r),
            ]
            for shot, r in zip(shots, agree, strict=True)
        ]
        lines = [
            Line(
                f"{shot['name']}{', random' if method == 'random' else ''}",
                [(point["pruned"], point["relative"]) for point in shot["points"] if point["method"] == method],
                place,
                method == "random",
            )
            for place, shot in enumerate(some(shots))
            for method in ("gradient", "random")
        ]
        file = f"{_file(name)}-track.svg"
        figures[file] = curves(lines, "share of its own score", y_percent=True)
        columns = ["", "whole", "40% gone", "random", "60% gone", "random", "advantage", "r with last"]
        title = f"{name}, {run['n']} sentences:"
        picture = f"![{name}: curves of checkpoints](figures/{file})"
        said += [title, table(columns, rows), run["in_words"], picture]
    how = (
        "Advantage: how much more of the score is left by importance than in random order (the mean of two), mean over "
        "the curve."
    )
    return "\n\n".join([*said, how, f"M19, {published.DYNAMICS}."])


def speed_table(results: Results, figures: dict[str, str]) -> str:
    """Examples per second, half of the heads of a BERT-base layout removed."""
    if results.speed is None:
        return "Not measured here."
    rows = []
    for row in results.speed["rows"]:
        paper = published.SPEED.get(row["batch"])
        theirs = f"{paper[0]} → {paper[1]} ({paper[2]:+.1%})" if paper else ""
        ours = f"{row['original']:.2f} → {row['pruned']:.2f}"
        interval = f"{row['low'] - 1:+.1%} to {row['high'] - 1:+.1%}"
        rows.append([row["batch"], ours, f"{row['speedup'] - 1:+.1%}", interval, f"{row['limit'] - 1:+.1%}", theirs])
    columns = ["batch", "examples/s", "gain", "95% interval", "limit by FLOPs", "M19"]
    return (
        table(columns, rows) + "\n\nA BERT-base layout (12 layers of 12 heads) with random weights, as speed does not "
        "depend on them, and a random half of its heads removed; M19 prunes a fine-tuned BERT. One thread's own CPU "
        "time, length 128, original and pruned in turns; the gain is the median over rounds, not the ratio of the two "
        "medians. M19 has a GPU, where a batch of 1 gains little; its batch of "
        f"64 ({published.SPEED[64][2]:+.1%}) takes 20 seconds a pass here, and is in [speed](speed.md)."
    )
