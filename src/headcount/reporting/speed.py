"""What pruning saves: measured speed beside the limit that the FLOPs set, and sizes on disk and in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from headcount.reporting import numbers
from headcount.reporting.charts import Estimate, interval_chart
from headcount.reporting.markup import Markup, capital, figure, figures, join, section_for_each, table, tag
from headcount.reporting.numbers import number, write
from headcount.reporting.runs import ModelRuns, RunRecord, mapping

NOTICEABLE = 1.02  # smaller gains are not worth mentioning, however certain


def speed(model: ModelRuns) -> Markup | None:
    """Each benchmark: a chart of speedups, and all of its numbers."""
    runs = [run for run in model.of("bench") if run.rows("rows")]
    return section_for_each("Speed", runs, _summary, _charts, _tables, _sizes)


def certain_gain(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The row with the largest batch among those that are noticeably faster with their whole interval above 1."""
    sure = [
        row for row in rows if (number(row.get("low")) or 0) > 1 and (number(row.get("speedup")) or 0) >= NOTICEABLE
    ]
    return max(sure, key=lambda row: number(row.get("batch")) or 0, default=None)


def benchmark_of(model: ModelRuns, cut: RunRecord) -> RunRecord | None:
    """The benchmark of the model that this cut saved."""
    saved = PurePath(cut.text("path") or "").parts[-2:]
    same = (run for run in model.of("bench") if PurePath(run.text("pruned") or "").parts[-2:] == saved)
    return next(same, None) if saved else None


def _summary(run: RunRecord) -> Markup:
    rounds, threads, verdict = run.number("rounds"), run.number("threads"), run.text("verdict")
    setup = [f"Medians of {numbers.count(rounds)} alternating rounds" if rounds else "Measured in alternating rounds"]
    setup += [f"{numbers.count(threads)} thread{'' if threads == 1 else 's'}"] if threads else []
    setup += [f"{run.text('clock')} clock"] if run.text("clock") else []
    setup += ["compiled"] if run.content.get("compiled") is True else []
    found = f"{capital(verdict)}. ".replace("\n", ". ") if verdict else ""
    return tag("p", f"{found}{', '.join(setup)}. The limit is the ratio of counted FLOPs.{_beyond_limit(run)}")


def _beyond_limit(run: RunRecord) -> str:
    """What it means if the measured speedup is above the FLOP limit."""
    measured = [[number(row.get(key)) for key in ("limit", "speedup", "low")] for row in run.rows("rows")]
    beyond = [(limit, low or 0.0) for limit, speedup, low in measured if limit is not None and (speedup or 0.0) > limit]
    if not beyond:
        return ""
    if all(low <= limit for limit, low in beyond):
        return " Speedups above it have the limit within their interval, so they are compatible with chance."
    return " Speedups above it are possible: smaller matrices also make better use of memory and caches."


def _parts(run: RunRecord) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """What was timed: its title, its unit, and its rows."""
    decoding = run.rows("decoding")
    first = "Prefill" if decoding else "Forward pass"
    return [(first, "examples/s", run.rows("rows")), *([("Decoding", "tokens/s", decoding)] if decoding else [])]


def _several_models(rows: Sequence[dict[str, Any]]) -> bool:
    return len({str(row.get("model")) for row in rows}) > 1


def _charts(run: RunRecord) -> Markup | None:
    pictures = []
    for title, unit, measured in _parts(run):
        named = _several_models(measured)
        rows = [estimate for row in measured if (estimate := _estimate(row, unit, named)) is not None]
        if rows:
            chart = interval_chart(rows, "times as fast as the original", f"{title}: speedup", 1.0)
            pictures.append(
                figure(f"{title}: speedup", chart, note="bars are 95% intervals; ticks mark the FLOP limit")
            )
    return figures(pictures)


def _estimate(row: dict[str, Any], unit: str, named: bool) -> Estimate | None:
    value = number(row.get("speedup"))
    if value is None:
        return None
    shape = f"batch {row.get('batch')} × {row.get('length')}"
    low, high, limit = (number(row.get(key)) for key in ("low", "high", "limit"))
    tip = [
        f"{row.get('model')}, {shape} tokens" if named else f"{shape} tokens",
        f"{value:.2f} times as fast (95% interval {numbers.interval(row, numbers.short)})",
        f"FLOP limit {numbers.short(limit)}",
        f"{numbers.short(row.get('original'))} → {numbers.short(row.get('pruned'))} {unit}",
    ]
    return Estimate(f"{str(row.get('model'))[:12]}, {shape}" if named else shape, value, low, high, tip, limit)


def _tables(run: RunRecord) -> Markup:
    made = []
    for title, unit, measured in _parts(run):
        columns: dict[str, Any] = {"model": lambda row: row.get("model")} if _several_models(measured) else {}
        columns |= {
            "batch": lambda row: row.get("batch"),
            "length": lambda row: row.get("length"),
            f"original, {unit}": lambda row: write(row.get("original"), ",.1f"),
        }
        if any(number(row.get("speedup")) is not None for row in measured):
            columns |= {
                f"pruned, {unit}": lambda row: write(row.get("pruned"), ",.1f"),
                "speedup": lambda row: _times(row.get("speedup")),
                "95% interval": lambda row: numbers.interval(row, _times),
                "FLOP limit": lambda row: _times(row.get("limit")),
            }
        made += [tag("h3", title), table(columns, measured)]
    return join(*made)


def _times(value: Any) -> str:
    return write(value, ".2f")


def _sizes(run: RunRecord) -> Markup | None:
    sizes = [(name, size) for name, size in mapping(run.content.get("sizes")).items() if isinstance(size, dict)]
    columns: dict[str, Any] = {
        "model": lambda pair: pair[0],
        "parameters": lambda pair: numbers.count(pair[1].get("parameters")),
        "MB on disk": lambda pair: _megabytes(pair[1].get("disk")),
        "peak memory, MB": lambda pair: _megabytes(pair[1].get("memory")),
    }
    return join(tag("h3", "Size"), table(columns, sizes)) if sizes else None


def _megabytes(value: Any) -> str:
    found = number(value)
    return write(None if found is None else found / 1e6, ",.1f")
