"""How far heads can go: pruning curves, and the search for the cut."""

from __future__ import annotations

from typing import Any

from headcount.report import words
from headcount.report.chart import figure
from headcount.report.facts import Facts, data_of, total_of
from headcount.report.lines import Dot, Series, line_chart
from headcount.report.markup import Markup
from headcount.report.runs import Run, number, rows
from headcount.report.sections.layout import Columns, figures, folded, section, sentences, table

COLOURS = ("c0", "c1", "c2", "c3", "c4", "c5")


def curves(facts: Facts) -> Markup | None:
    """The metric as more and more heads go, and what `prune` tried."""
    measured = [run for run in facts.of("curve") if run.rows("curves")]
    searched = [run for run in facts.of("prune") if len(run.rows("tried")) > 1]
    if not measured and not searched:
        return None
    cuts = [run for run in facts.of("prune") if run.finished]
    pictures = [_curve(run, cuts[0] if cuts else None) for run in measured] + [_search(run) for run in searched]
    tables = [_curve_numbers(run) for run in measured] + [_search_numbers(run) for run in searched]
    said = sentences(*map(_what_lasts, measured), *map(_what_was_tried, searched))
    return section("How many heads can go", figures(*pictures), *tables, summary=said)


def _curve(run: Run, cut: Run | None) -> Markup:
    metric = run.word("metric")
    series = []
    for place, one in enumerate(run.rows("curves")):
        dots = [dot for point in rows(one.get("points")) if (dot := _dot(point, metric, curve_name(one)))]
        plain = "c6" if one.get("method") == "random" else COLOURS[place % len(COLOURS)]
        series.append(Series(curve_name(one), plain, dots))
    at = None
    by_kind = any(one.get("kind") for one in run.rows("curves"))  # then the axis is a share of that kind's heads
    if cut is not None and total_of(cut) and not by_kind:
        at = (len(cut.listed("removed")) / total_of(cut), "chosen cut")
    name = words.metric_name(metric)
    label = f"{name} as heads are removed"
    return figure(
        words.capital(label),
        line_chart(
            series, "heads removed", name, label,
            x_percent=True, at=at, whole=True, powers=metric in words.LOWER_IS_BETTER,
        ),
        note=f"{data_of(run)}; bands are 95% intervals",
    )  # fmt: skip


def curve_name(one: dict[str, Any]) -> str:
    """`gradient`, `oracle, cross`."""
    return ", ".join(str(part) for part in (one.get("method"), one.get("kind")) if part)


def _dot(point: dict[str, Any], metric: str | None, name: str) -> Dot | None:
    x, y = number(point.get("pruned")), number(point.get("score"))
    if x is None or y is None:
        return None
    gone = point.get("removed")
    heads = f" ({len(gone)} heads)" if isinstance(gone, list) else ""
    tip = [
        f"{name}: {words.share(x)} removed{heads}",
        f"{words.metric_name(metric)} {words.score(y, metric)}",
        f"95% interval {words.interval(point, metric, signed=False)}",
    ]
    return Dot(x, y, number(point.get("low")), number(point.get("high")), tip)


def lasting(run: Run) -> list[tuple[dict[str, Any], float]]:
    """Each curve with its last point before a significant loss, by the paired interval of its change."""
    metric = run.word("metric")
    found = []
    for one in run.rows("curves"):
        last = None
        for point in rows(one.get("points")):
            best = number(point.get("change_low" if metric in words.LOWER_IS_BETTER else "change_high"))
            share = number(point.get("pruned"))
            if best is None or share is None or words.worse(best, metric):
                break
            last = share
        if last is not None:
            found.append((one, last))
    return found


def _what_lasts(run: Run) -> str:
    base, metric = run.number("base"), run.word("metric")
    said = [f"{words.share(share)} ({curve_name(one)})" for one, share in lasting(run)]
    if not said:
        return ""
    return (
        f"On {data_of(run)}, where the whole model has {words.metric_name(metric)} {words.score(base, metric)}, "
        f"the loss is not significant up to {', '.join(said)} of the heads gone."
    )


def _curve_numbers(run: Run) -> Markup:
    metric = run.word("metric")
    columns: Columns = {
        "order": lambda row: curve_name(row[0]),
        "removed": lambda row: words.share(row[1].get("pruned")),
        "score": lambda row: words.score(row[1].get("score"), metric),
        "95% interval": lambda row: words.interval(row[1], metric, signed=False),
    }
    points = [(one, point) for one in run.rows("curves") for point in rows(one.get("points"))]
    return folded("The numbers of the curves", table(columns, points))


def tried(run: Run) -> list[dict[str, Any]]:
    """The cuts that `prune` looked at."""
    return [row for row in run.rows("tried") if None not in (number(row.get("removed")), number(row.get("change")))]


def _search(run: Run) -> Markup:
    metric, total = run.word("metric"), max(1, total_of(run))
    dots = [Dot(0.0, 0.0, 0.0, 0.0, ["the whole model"])]
    for row in tried(run):
        chosen = row.get("chosen") is True
        tip = [
            f"{row['removed']} of {total} heads removed" + (": chosen" if chosen else ""),
            f"change {words.change(row['change'], metric)}, {words.metric_name(metric)} "
            f"{words.score(row.get('score'), metric)}",
            f"95% interval {words.interval(row, metric, 'change_low', 'change_high')}",
        ]
        ends = number(row.get("change_low")), number(row.get("change_high"))
        dots.append(Dot(row["removed"] / total, row["change"], *ends, tip, chosen))
    name = words.metric_name(metric)
    return figure(
        "Cuts that were tried",
        line_chart(
            [Series("search", "c0", dots)], "heads removed", f"change of {name}", f"change of {name} with each cut",
            x_percent=True, level=_budget(run),
        ),
        note="on the data that chooses; the ring is the chosen cut, bands are 95% intervals",
    )  # fmt: skip


def _budget(run: Run) -> tuple[float, str] | None:
    """The largest drop that was allowed, as a change of the metric."""
    metric, most = run.word("metric"), run.number("max_drop")
    bases = [(number(row.get("score")) or 0.0) - row["change"] for row in tried(run)]
    if most is None or not bases:
        return None
    name = f"budget: {words.points(most, metric)}"
    return (most * bases[0] / 100, name) if metric in words.RELATIVE else (-most * words.point(metric), name)


def _what_was_tried(run: Run) -> str:
    return (
        f"To stay within {words.points(run.number('max_drop'), run.word('metric'))}, {run.word('method') or 'search'} "
        f"looked at {len(tried(run))} cuts and chose {len(run.listed('removed'))} of {total_of(run)} heads."
    )


def _search_numbers(run: Run) -> Markup:
    metric = run.word("metric")
    columns: Columns = {
        "heads removed": lambda row: row["removed"],
        "score": lambda row: words.score(row.get("score"), metric),
        "change": lambda row: words.change(row["change"], metric),
        "95% interval": lambda row: words.interval(row, metric, "change_low", "change_high"),
    }
    return folded("The numbers of the search", table(columns, tried(run), lambda row: row.get("chosen") is True))
