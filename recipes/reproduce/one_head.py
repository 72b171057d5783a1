"""M19 table 1 and figures 1 and 2: one head off at a time, and the same out of domain."""

from __future__ import annotations

from typing import Any

import numpy as np
from recipes.reproduce import published
from recipes.reproduce.figures import histogram
from recipes.reproduce.markdown import HUNDREDS, metric_name, points, score, table
from recipes.reproduce.results import Results

from headcount.heads import Head
from headcount.reporting import scatter_svg
from headcount.stats.tests import Correlation, correlation

ALPHA = 0.01  # M19's
FEW = 5  # significant heads below which a correlation over heads is mostly one of noise


def counted(run: dict[str, Any]) -> dict[str, int]:
    """How many heads matter: as M19 counts them (p < 0.01 each), and corrected for testing them all."""
    significant = [row for row in run["heads"] if row["p"] < ALPHA]
    return {
        "heads": len(run["heads"]),
        "significant": len(significant),
        "better": sum(row["change"] > 0 for row in significant),
        "holm": sum(row["p_holm"] < ALPHA for row in run["heads"]),
    }


def precision(run: dict[str, Any], rows: str = "heads") -> str:
    """Half the median width of the 95% intervals, in points: effects far below it cannot be told from chance."""
    half = np.median([(row["high"] - row["low"]) / 2 for row in run[rows]])
    return points(float(half), run["metric"]).lstrip("+")


def one_head(results: Results, figures: dict[str, str]) -> str:
    """How many heads matter, and how much (table 1, figure 1)."""
    rows, pictures, matrix = [], [], ""
    for name, run in results.of("ablate").items():
        metric, found = run["metric"], counted(run)
        file = f"{_file(name)}-one-head.svg"
        changes = [row["change"] * (1 if metric in HUNDREDS else 100) for row in run["heads"]]
        figures[file] = histogram(changes, f"change of {metric_name(metric)} with the head off, in points")
        pictures.append(f"![{name}: heads by what their removal changes](figures/{file})")
        worst = min(run["heads"], key=lambda row: row["change"])
        rows.append(
            [
                *(name, run["n"], f"{metric_name(metric)} {score(run['base'], metric)}", found["heads"]),
                *(found["significant"], found["better"], found["holm"], f"± {precision(run)}"),
                f"{worst['head']} {points(worst['change'], metric)}",
            ]
        )
        if not matrix and results.experiments[name].translates:
            matrix = f"\n\n{name}, encoder heads, change in points (* p < {ALPHA:g}):\n\n{_matrix(run)}"
    paper = published.ONE_HEAD
    rows.append(["*M19, WMT encoder*", 3000, "BLEU 36.05", *paper.values(), "", "", ""])
    tests = [f"p < {ALPHA:g}", "of these better off", f"Holm p < {ALPHA:g}", "precision"]
    columns = ["", "n", "whole model", "heads", *tests, "worst"]
    return table(columns, rows) + matrix + "\n\n" + "\n".join(pictures)


def _matrix(run: dict[str, Any]) -> str:
    found = {Head.parse(row["head"]): row for row in run["heads"]}
    heads = [head for head in found if head.kind == "encoder"]
    layers = sorted({head.layer for head in heads})
    width = 1 + max(head.index for head in heads)
    lines = []
    for layer in layers:
        here = {head.index: found[head] for head in heads if head.layer == layer}
        cells = [
            f"{points(here[i]['change'], run['metric'])}{'*' if here[i]['p'] < ALPHA else ''}" if i in here else ""
            for i in range(width)
        ]
        lines.append([layer, *cells])
    return table(["layer", *range(width)], lines)


def agreement(results: Results) -> dict[str, Correlation]:
    """Pearson r over heads between the effects in and out of domain, by experiment."""
    found = {}
    for name, other in results.of("other").items():
        here = results.of("ablate").get(name)
        if here is not None:
            found[name] = correlation(*([row["change"] for row in run["heads"]] for run in (here, other)))
    return found


def without_largest(here: dict[str, Any], other: dict[str, Any]) -> float:
    """Pearson r again, without the one head with the largest effect in domain."""
    pairs = [(a["change"], b["change"]) for a, b in zip(here["heads"], other["heads"], strict=True)]
    pairs.remove(max(pairs, key=lambda pair: abs(pair[0])))
    return correlation(*(np.array(side) for side in zip(*pairs, strict=True))).pearson


def domains(results: Results, figures: dict[str, str]) -> str:
    """Do the same heads matter on other data (figure 2)?"""
    rows, pictures, noisy = [], [], []
    for name, both in agreement(results).items():
        here, other = results.of("ablate")[name], results.of("other")[name]
        file, metric = f"{_file(name)}-domains.svg", here["metric"]
        dots = [(a["head"], a["change"], b["change"]) for a, b in zip(here["heads"], other["heads"], strict=True)]
        digits = 2 if metric in HUNDREDS else 4
        figures[file] = scatter_svg(dots, "in domain", "out of domain", f"{name}, {metric_name(metric)}", digits)
        pictures.append(f"![{name}: effect of each head in and out of domain](figures/{file})")
        bases = f"{score(here['base'], metric)} / {score(other['base'], metric)}"
        size = f"{here['n']} / {other['n']}"
        r = [f"{both.pearson:.2f}", f"{both.pearson_p:.1g}", f"{without_largest(here, other):.2f}"]
        rows.append([name, size, bases, *r, f"{both.spearman:.2f}"])
        if counted(here)["significant"] < FEW:
            noisy.append(f"{name} ({counted(here)['significant']} heads, ± {precision(here)} points)")
    rows += [[f"*M19, {name}*", "", "", f"{r:.2f}", "< 0.01", "", ""] for name, r in published.DOMAINS.items()]
    why = (
        f"Fewer than {FEW} heads have an effect that stands out from chance on so few examples: {', '.join(noisy)}. "
        "There r is mostly that of noise, and says little about the heads; more examples are needed.\n\n"
    )
    said = table(["", "n", "whole model", "Pearson r", "p", "r without the largest head", "Spearman r"], rows)
    return f"{said}\n\n{why if noisy else ''}" + "\n".join(pictures)


def _file(name: str) -> str:
    return name.lower().replace(" ", "-")
