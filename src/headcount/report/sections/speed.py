"""Speed: what was measured, with the limit that the FLOPs set beside it."""

from __future__ import annotations

from typing import Any

from headcount.report import words
from headcount.report.chart import figure
from headcount.report.facts import Facts
from headcount.report.markup import Markup, join, tag
from headcount.report.ranges import Range, range_chart
from headcount.report.runs import Run, mapping, number, rows
from headcount.report.sections.layout import figures, section, table


def speed(facts: Facts) -> Markup | None:
    """Each benchmark: a chart of speedups, and all of its numbers."""
    runs = [run for run in facts.of("bench") if run.rows("rows")]
    if not runs:
        return None
    return section("Speed", *(join(tag("p", _said(run)), _pictures(run), *_tables(run)) for run in runs))


def _said(run: Run) -> str:
    rounds, threads = run.number("rounds"), run.number("threads")
    verdict = run.word("verdict")
    how = [f"Medians of {words.count(rounds)} rounds in turns" if rounds else "Measured in turns"]
    how += [f"{words.count(threads)} thread{'' if threads == 1 else 's'}"] if threads else []
    how += [f"{run.word('clock')} clock"] if run.word("clock") else []
    how += ["compiled"] if run.content.get("compiled") is True else []
    found = f"{words.capital(verdict)}. ".replace("\n", ". ") if verdict else ""
    return f"{found}{', '.join(how)}. The limit is the ratio of counted FLOPs.{_beyond(run)}"


def _beyond(run: Run) -> str:
    """What it means where more was measured than FLOPs allow."""
    measured = [[number(row.get(key)) for key in ("limit", "speedup", "low")] for row in run.rows("rows")]
    beyond = [(limit, low or 0.0) for limit, speedup, low in measured if limit is not None and (speedup or 0.0) > limit]
    if not beyond:
        return ""
    if all(low <= limit for limit, low in beyond):
        return " What lies above it does so within its interval, by chance."
    return " More than it is possible: smaller matrices can also use the memory and its caches better."


def _parts(run: Run) -> list[tuple[str, str, list[dict[str, Any]]]]:
    decoding = rows(run.content.get("decoding"))
    first = "Prefill" if decoding else "Forward pass"
    return [(first, "examples/s", run.rows("rows")), *([("Decoding", "tokens/s", decoding)] if decoding else [])]


def _pictures(run: Run) -> Markup | None:
    pictures = []
    for title, unit, measured in _parts(run):
        named = len({str(row.get("model")) for row in measured}) > 1
        ranges = []
        for row in measured:
            value = number(row.get("speedup"))
            if value is None:
                continue
            place = f"batch {row.get('batch')} × {row.get('length')}"
            low, high, limit = (number(row.get(key)) for key in ("low", "high", "limit"))
            tip = [
                f"{row.get('model')}, {place} tokens" if named else f"{place} tokens",
                f"{value:.2f} times as fast (95% {words.short(low)} to {words.short(high)})",
                f"limit by FLOPs {words.short(limit)}",
                f"{words.short(row.get('original'))} → {words.short(row.get('pruned'))} {unit}",
            ]
            shown = f"{str(row.get('model'))[:12]}, {place}" if named else place
            ranges.append(Range(shown, value, low, high, tip, limit))
        if ranges:
            chart = range_chart(ranges, "times as fast as the original", f"{title}: speedup", 1.0)
            pictures.append(
                figure(f"{title}: times as fast", chart, note="bars are 95% intervals, ticks the FLOP limit")
            )
    return figures(*pictures) if pictures else None


def _tables(run: Run) -> list[Markup]:
    made = []
    for title, unit, measured in _parts(run):
        named = len({str(row.get("model")) for row in measured}) > 1
        columns: dict[str, Any] = {"model": lambda row: row.get("model")} if named else {}
        columns |= {
            "batch": lambda row: row.get("batch"),
            "length": lambda row: row.get("length"),
            f"original, {unit}": lambda row: _rate(row.get("original")),
        }
        if any(number(row.get("speedup")) is not None for row in measured):
            columns |= {
                f"pruned, {unit}": lambda row: _rate(row.get("pruned")),
                "speedup": lambda row: _times(row.get("speedup")),
                "95% interval": lambda row: words.ends(row, _times, "low", "high"),
                "FLOP limit": lambda row: _times(row.get("limit")),
            }
        made += [tag("h3", title), table(columns, measured)]
    sizes = [(name, size) for name, size in mapping(run.content.get("sizes")).items() if isinstance(size, dict)]
    columns = {
        "model": lambda pair: pair[0],
        "parameters": lambda pair: words.count(pair[1].get("parameters")),
        "MB on disk": lambda pair: _megabytes(pair[1].get("disk")),
        "MB in memory, at the peak": lambda pair: _megabytes(pair[1].get("memory")),
    }
    return [*made, tag("h3", "Size"), table(columns, sizes)] if sizes else made


def _rate(value: Any) -> str:
    found = number(value)
    return words.NOTHING if found is None else f"{found:,.1f}"


def _times(value: Any) -> str:
    found = number(value)
    return words.NOTHING if found is None else f"{found:.2f}"


def _megabytes(value: Any) -> str:
    found = number(value)
    return words.NOTHING if found is None else f"{found / 1e6:,.1f}"
