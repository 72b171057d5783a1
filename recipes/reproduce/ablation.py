"""M19 tables 1, 2, 3, 5 and 6 and figures 1 and 2: one head off, all but one head off, and the same out of domain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from recipes.reproduce.figures import (
    file_name,
    gain,
    histogram,
    in_points,
    metric_name,
    percent,
    points,
    scatter,
    score,
    table,
)
from recipes.reproduce.resampling import LOSSES
from recipes.reproduce.running import Results

from headcount.heads import Head
from headcount.stats import correlation

ALPHA = 0.01  # M19's
FEW = 5  # significant heads; with fewer, a correlation over heads is mostly one of noise
# What M19 published.
ONE_HEAD = {"heads": 96, "significant": 8, "better": 4}  # WMT encoder, table 1 and section 3.2, p < 0.01
ALL_BUT_ONE = {  # change of BLEU by layer (table 2), * is p < 0.01
    "encoder": "-1.31* -0.16 +0.12 -0.15 +0.02 -0.36*",
    "cross": "+0.24* +0.06 +0.05 -0.24 -1.55* -13.56*",
    "decoder": "-0.03 +0.12 +0.18 +0.17 -0.04 +0.24",
}
ALL_BUT_ONE_BERT = "-0.01 +0.10 -0.14 -0.53 -0.29 -0.52 +0.05 -0.72 -0.96 +0.07 -0.19 -0.12"  # percent, table 3
CHOSEN_APART = {"WMT": 0.5, "BERT": 1.0}  # layers without a significant change, tables 5 and 6
DOMAINS = {"WMT / MTNT": 0.56, "MNLI matched / mismatched": 0.68}  # figure 2, Pearson r, both p < 0.01


def lost(run: Mapping[str, Any], rows: str = "heads") -> list[dict[str, Any]]:
    """The heads or layers whose ablation makes the score significantly worse."""
    return [row for row in run[rows] if row["p"] < ALPHA and gain(row["change"], run) < 0]


def counted(run: dict[str, Any]) -> dict[str, int]:
    """How many heads matter: as M19 counts them (p < 0.01 each), and corrected for testing all of them."""
    significant = [row for row in run["heads"] if row["p"] < ALPHA]
    return {
        "heads": len(run["heads"]),
        "significant": len(significant),
        "better": sum(gain(row["change"], run) > 0 for row in significant),
        "holm": sum(row["p_holm"] < ALPHA for row in run["heads"]),
    }


def precision(run: dict[str, Any], rows: str = "heads") -> str:
    """Half the median width of the 95% intervals, in points: much smaller effects cannot be told from chance."""
    half = np.median([(row["high"] - row["low"]) / 2 for row in run[rows]])
    return points(float(half), run).lstrip("+")


def one_head(results: Results, figures: dict[str, str]) -> str:
    """How many heads matter, and how much (table 1, figure 1)."""
    rows, pictures, matrix = [], [], ""
    for name, run in results.of("ablate").items():
        found, file = counted(run), f"{file_name(name)}-one-head.svg"
        changes = [in_points(row["change"], run) for row in run["heads"]]
        figures[file] = histogram(changes, f"change of {metric_name(run)} with the head off, in points")
        pictures.append(f"![{name}: heads by what their removal changes](figures/{file})")
        worst = min(run["heads"], key=lambda row: gain(row["change"], run))
        rows.append(
            [
                *(name, run["n"], f"{metric_name(run)} {score(run['base'], run)}", found["heads"]),
                *(found["significant"], found["better"], _compared(run), found["holm"]),
                f"± {precision(run)}",
                f"{worst['head']} {points(worst['change'], run)}",
            ]
        )
        if not matrix and results.experiments[name].translates:
            matrix = f"\n\n{name}, encoder heads, change in points (* p < {ALPHA:g}):\n\n{_matrix(run)}"
    theirs = (ONE_HEAD["heads"], "", "", f"{ONE_HEAD['significant']}, {ONE_HEAD['better']} better off", "", "", "")
    rows.append(["*M19, WMT encoder*", 3000, "BLEU 36.05", *theirs])
    one_sided = f"compare-mt p < {ALPHA:g}, one-sided"
    tests = [f"p < {ALPHA:g}", "of these better off", one_sided, f"Holm p < {ALPHA:g}", "precision"]
    columns = ["", "n", "whole model", "heads", *tests, "worst"]
    return table(columns, rows) + matrix + "\n\n" + "\n".join(pictures)


def _compared(run: dict[str, Any]) -> str:
    """How many heads are significant by compare-mt's one-sided paired bootstrap, M19's test of translators."""
    if "compare_mt_p" not in run:
        return ""
    surely = [row for row, p in zip(run["heads"], run["compare_mt_p"], strict=True) if p < ALPHA]
    return f"{len(surely)}, {sum(gain(row['change'], run) > 0 for row in surely)} better off"


def _matrix(run: dict[str, Any]) -> str:
    found = {Head.parse(row["head"]): row for row in run["heads"]}
    heads = [head for head in found if head.kind == "encoder"]
    layers = sorted({head.layer for head in heads})
    width = 1 + max(head.index for head in heads)
    lines = []
    for layer in layers:
        here = {head.index: found[head] for head in heads if head.layer == layer}
        cells = [
            f"{points(here[i]['change'], run)}{'*' if here[i]['p'] < ALPHA else ''}" if i in here else ""
            for i in range(width)
        ]
        lines.append([layer, *cells])
    return table(["layer", *range(width)], lines)


def all_but_one(results: Results, figures: dict[str, str]) -> str:
    """Each layer reduced to one head: the best on the test data, and the best on other data."""
    rows = []
    best = results.of("best")
    for name, run in results.of("alone").items():
        for kind in dict.fromkeys(row["kind"] for row in run["layers"]):
            here = _of_kind(run, kind)
            same = _changes(best[name], kind) if name in best else ""
            unchanged = sum(row["p"] >= ALPHA for row in here)
            rows.append([name, kind, run["n"], same, _changes(run, kind), f"{unchanged} of {len(here)}"])
    for kind, changes in ALL_BUT_ONE.items():
        rows.append(["*M19, WMT*", kind, 3000, changes, "", f"all kinds: {percent(CHOSEN_APART['WMT'])}"])
    bert = percent(CHOSEN_APART["BERT"])
    rows.append(["*M19, BERT on MNLI*", "encoder", 9815, ALL_BUT_ONE_BERT, "", bert])
    columns = ["", "kind", "n", "chosen on the same data", "chosen on other data", "no significant change"]
    return table(columns, rows) + _more(results)


def _more(results: Results) -> str:
    """Why more layers than in the paper show no change, if they do."""
    found = []
    for name, run in results.of("alone").items():
        unchanged = sum(row["p"] >= ALPHA for row in run["layers"]) / len(run["layers"])
        if results.experiments[name].translates and unchanged > CHOSEN_APART["WMT"]:
            found.append(f"{name} {percent(unchanged)}, ± {precision(run, 'layers')} points")
    if not found:
        return ""
    theirs = percent(CHOSEN_APART["WMT"])
    return (
        f"\n\nMore layers of the translators than M19's {theirs} show no significant change ({'; '.join(found)}, half "
        "the width of a typical 95% interval): with fewer sentences than M19's 3,000, smaller changes cannot be told "
        "from chance."
    )


def _of_kind(run: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [row for row in run["layers"] if row["kind"] == kind]


def _changes(run: dict[str, Any], kind: str) -> str:
    """The change of every layer in points, starred where it is significant."""
    stars = ((points(row["change"], run), row["p"] < ALPHA) for row in _of_kind(run, kind))
    return " ".join(f"{change}{'*' * surely}" for change, surely in stars)


def without_largest(here: Sequence[float], other: Sequence[float]) -> float:
    """Pearson r again, without the one head with the largest effect in domain."""
    place = int(np.argmax(np.abs(here)))
    return correlation(np.delete(here, place), np.delete(other, place)).pearson


def domains(results: Results, figures: dict[str, str]) -> str:
    """Do the same heads matter on other data (figure 2)?"""
    rows, pictures, noisy = [], [], []
    for name, other in results.of("other").items():
        here = results.of("ablate").get(name)
        if here is None:
            continue
        file = f"{file_name(name)}-domains.svg"
        dots = [(a["head"], a["change"], b["change"]) for a, b in zip(here["heads"], other["heads"], strict=True)]
        figures[file] = scatter(dots, name, here)
        pictures.append(f"![{name}: effect of each head in and out of domain](figures/{file})")
        bases = f"{score(here['base'], here)} / {score(other['base'], other)}"
        size = f"{here['n']} / {other['n']}"
        effects = [[row["change"] for row in run["heads"]] for run in (here, other)]
        both = [run.get("reliability") for run in (here, other)]
        rows.append([name, size, bases, *_alike(*effects, other.get("r_interval"), both)])
        if "losses" in other:
            found = other["losses"]
            rows.append([f"{name}, by the loss", size, "", *_alike(*(found[key] for key in LOSSES))])
        if counted(here)["significant"] < FEW:
            noisy.append(f"{name} ({counted(here)['significant']} heads, ± {precision(here)} points)")
    rows += [[f"*M19, {name}*", "", "", f"{r:.2f}", "", "< 0.01", "", "", ""] for name, r in DOMAINS.items()]
    why = (
        f"Fewer than {FEW} heads have an effect that stands out from chance on this few examples: {', '.join(noisy)}. "
        "There r is mostly that of noise and says little about the heads; more examples are needed.\n\n"
    )
    parts = ["Pearson r", "95% interval", "p", "reliability", "r without the largest head", "Spearman r"]
    shown = table(["", "n", "whole model", *parts], rows)
    return f"{shown}\n\n{why if noisy else ''}" + "\n".join(pictures)


def _alike(
    here: Sequence[float],
    other: Sequence[float],
    interval: Sequence[float] | None,
    reliabilities: Sequence[float | None],
) -> list[str]:
    """How the effects of heads on one data set go with those on another."""
    both = correlation(here, other)
    between = "" if interval is None else "{:.2f} to {:.2f}".format(*interval)
    halves = " / ".join("?" if one is None else f"{one:.2f}" for one in reliabilities)
    cells = [f"{both.pearson:.2f}", between, f"{both.pearson_p:.1g}", halves, f"{without_largest(here, other):.2f}"]
    return [*cells, f"{both.spearman:.2f}"]
