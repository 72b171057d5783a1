"""M19 tables 2 and 3, 5 and 6: each layer reduced to a single head."""

from __future__ import annotations

from typing import Any

from recipes.reproduce import published
from recipes.reproduce.markdown import percent, points, table
from recipes.reproduce.one_head import ALPHA, precision
from recipes.reproduce.results import Results


def lost(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The layers whose score is significantly worse with one head, chosen on other data."""
    return [row for row in run["layers"] if row["p"] < ALPHA and row["change"] < 0]


def all_but_one(results: Results, figures: dict[str, str]) -> str:
    """By layer, first to last: the best head of the test data, and the one that was the best of other data."""
    rows = []
    best = results.of("best")
    for name, run in results.of("alone").items():
        for kind in dict.fromkeys(row["kind"] for row in run["layers"]):
            here = _of_kind(run, kind)
            same = _changes(best[name], kind) if name in best else ""
            unchanged = sum(row["p"] >= ALPHA for row in here)
            rows.append([name, kind, run["n"], same, _changes(run, kind), f"{unchanged} of {len(here)}"])
    for kind, changes in published.ALL_BUT_ONE.items():
        rows.append(["*M19, WMT*", kind, 3000, changes, "", f"all kinds: {percent(published.CHOSEN_APART['WMT'])}"])
    bert = percent(published.CHOSEN_APART["BERT"])
    rows.append(["*M19, BERT on MNLI*", "encoder", 9815, published.ALL_BUT_ONE_BERT, "", bert])
    columns = ["", "kind", "n", "chosen on the same data", "chosen on other data", "no significant change"]
    return table(columns, rows) + _more(results)


def _more(results: Results) -> str:
    """Why more layers than in the paper show no change, where that is so."""
    found = []
    for name, run in results.of("alone").items():
        unchanged = sum(row["p"] >= ALPHA for row in run["layers"]) / len(run["layers"])
        if results.experiments[name].translates and unchanged > published.CHOSEN_APART["WMT"]:
            found.append(f"{name} {percent(unchanged)}, ± {precision(run, 'layers')} points")
    if not found:
        return ""
    theirs = percent(published.CHOSEN_APART["WMT"])
    return (
        f"\n\nMore layers of the translators than M19's {theirs} show no significant change ({'; '.join(found)}, half "
        "the width of a typical 95% interval): with fewer sentences than M19's 3,000, smaller changes cannot be told "
        "from chance."
    )


def _of_kind(run: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [row for row in run["layers"] if row["kind"] == kind]


def _changes(run: dict[str, Any], kind: str) -> str:
    """The change of every layer in points, starred where it is significant."""
    stars = ((points(row["change"], run["metric"]), row["p"] < ALPHA) for row in _of_kind(run, kind))
    return " ".join(f"{change}{'*' * surely}" for change, surely in stars)
