"""M19 tables 2 and 3, 5 and 6: each layer reduced to a single head."""

from __future__ import annotations

from typing import Any

from recipes.reproduce import published
from recipes.reproduce.markdown import percent, points, table
from recipes.reproduce.one_head import ALPHA
from recipes.reproduce.results import Results


def lost(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The layers whose score is significantly worse with one head, chosen on other data."""
    return [row for row in run["layers"] if row["p"] < ALPHA and row["change"] < 0]


def all_but_one(results: Results, figures: dict[str, str]) -> str:
    """By layer, first to last: the best head on the data it was chosen on, and that head on other data."""
    rows = []
    for name, run in results.of("alone").items():
        for kind in dict.fromkeys(row["kind"] for row in run["layers"]):
            here = [row for row in run["layers"] if row["kind"] == kind]
            same = " ".join(points(max(row["changes"].values()), run["metric"]) for row in here)
            apart = " ".join(f"{points(row['change'], run['metric'])}{_star(row)}" for row in here)
            unchanged = sum(row["p"] >= ALPHA for row in here)
            rows.append([name, kind, run["n"], same, apart, f"{unchanged} of {len(here)}"])
    for kind, changes in published.ALL_BUT_ONE.items():
        rows.append(["*M19, WMT*", kind, 3000, changes, "", f"all kinds: {percent(published.CHOSEN_APART['WMT'])}"])
    bert = percent(published.CHOSEN_APART["BERT"])
    rows.append(["*M19, BERT on MNLI*", "encoder", 9815, published.ALL_BUT_ONE_BERT, "", bert])
    columns = ["", "kind", "n", "chosen on the same data", "chosen on other data", "no significant change"]
    return table(columns, rows)


def _star(row: dict[str, Any]) -> str:
    return "*" if row["p"] < ALPHA else ""
