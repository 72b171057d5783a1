"""What training shows: checkpoints of one run (M19 figure 5), and gates that learn to close (V19 section 6)."""

from __future__ import annotations

from typing import Any

from headcount.report import words
from headcount.report.chart import figure
from headcount.report.facts import Facts, data_of
from headcount.report.lines import Dot, Series, line_chart
from headcount.report.markup import Markup, join, tag
from headcount.report.ranges import Range, range_chart
from headcount.report.runs import Run, number, rows
from headcount.report.sections.layout import Columns, figures, section, sentences, table

SHADES = ("t1", "t2", "t3", "t4", "t5", "t6")  # the later, the darker


def dynamics(facts: Facts) -> Markup | None:
    """Pruning curves of every checkpoint, by importance and in random order, and when the order of heads settles."""
    runs = [run for run in facts.of("track") if run.rows("checkpoints")]
    if not runs:
        return None
    return section(
        "During training", *(join(tag("p", _told(run)), figures(*_tracked(run)), _base(run)) for run in runs)
    )


def _tracked(run: Run) -> list[Markup]:
    checkpoints = run.rows("checkpoints")
    methods = list(dict.fromkeys(str(point.get("method")) for one in checkpoints for point in rows(one.get("points"))))
    pictures: list[Markup | None] = []
    for method in methods:
        series = [
            Series(str(one.get("name")), _shade(place, len(checkpoints)), _steps(one, method, run.word("metric")))
            for place, one in enumerate(checkpoints)
        ]
        if not any(one.dots for one in series):
            continue
        by = {"gradient": "least important heads first", "random": "in random order"}.get(method, "")
        name = words.metric_name(run.word("metric"))
        chart = line_chart(
            series, "heads removed", f"{name}, share of its own", f"checkpoints pruned, {by or method}",
            x_percent=True, y_percent=True, bands=False, whole=True, powers=run.word("metric") in words.LOWER_IS_BETTER,
        )  # fmt: skip
        title = f"Pruned, {by}" if by else f"Pruned by {method}"
        pictures.append(figure(title, chart, note=f"{data_of(run)}; each checkpoint against itself unpruned"))
    pictures.append(_agreement(run, checkpoints))
    return [picture for picture in pictures if picture]


def _shade(place: int, of: int) -> str:
    return SHADES[round((len(SHADES) - 1) * (place / (of - 1) if of > 1 else 1))]


def _steps(one: dict[str, Any], method: str, metric: str | None) -> list[Dot]:
    dots = []
    for point in rows(one.get("points")):
        x, y = number(point.get("pruned")), number(point.get("relative"))
        if str(point.get("method")) != method or x is None or y is None:
            continue
        name = f"{one.get('name')}: {words.share(x)} removed"
        tip = [name, f"{words.share(y, 1)} of its score", f"{words.metric_name(metric)} {_score(point, metric)}"]
        dots.append(Dot(x, y, None, None, tip))
    return dots


def _score(point: dict[str, Any], metric: str | None) -> str:
    return f"{words.score(point.get('score'), metric)} ({words.interval(point, metric, signed=False)})"


def _agreement(run: Run, checkpoints: list[dict[str, Any]]) -> Markup | None:
    """How much each checkpoint's order of heads is that of the last one."""
    said = run.content.get("with_last")
    found = [number(value) for value in said] if isinstance(said, list) else []
    ranges = [
        Range(name[-24:], r, None, None, [name, f"Spearman r {r:.2f} with the last checkpoint"])
        for one, r in zip(checkpoints, found, strict=False)
        if r is not None and (name := str(one.get("name")))
    ]
    if not ranges:
        return None
    chart = range_chart(ranges, "Spearman r", "order of heads against the last checkpoint's", 1.0)
    return figure("Order of heads against the last checkpoint's", chart, note="1: the same order")


def _told(run: Run) -> str:
    names = [str(one.get("name")) for one in run.rows("checkpoints")]
    several = f"{len(names)} checkpoints, from {names[0]} to {names[-1]}."
    return sentences(f"1 checkpoint: {names[0]}." if len(names) == 1 else several, run.word("in_words"))


def _base(run: Run) -> Markup:
    metric, with_last = run.word("metric"), run.content.get("with_last")
    agreed = with_last if isinstance(with_last, list) else []
    columns: Columns = {
        "checkpoint": lambda pair: pair[1].get("name"),
        words.metric_name(metric): lambda pair: words.score(pair[1].get("base"), metric),
        "better than random by": lambda pair: words.share(pair[1].get("advantage"), 1),
        "r with the last": lambda pair: words.correlation(agreed[pair[0]] if pair[0] < len(agreed) else None),
    }
    return table(columns, list(enumerate(run.rows("checkpoints"))))


def gates(facts: Facts) -> Markup | None:
    """How gates closed during training, and what was left of the metric."""
    runs = [run for run in facts.of("gates") if run.rows("stages")]
    if not runs:
        return None
    return section(
        "Training of gates", *(join(tag("p", _gated(run)), figures(*_course(run)), _stages(run)) for run in runs)
    )


def _gated(run: Run) -> str:
    if not run.finished:
        return "As far as the training has come."
    metric = run.word("metric")
    decided = words.share(run.number("decided"))
    remarks = run.content.get("remarks")
    return sentences(
        f"{len(run.listed('removed'))} heads closed and were removed, {words.count(run.number('left'))} are left; "
        f"{words.metric_name(metric)} {words.score(run.number('before'), metric)} before, "
        f"{words.score(run.number('after'), metric)} after, on {data_of(run, 'test')}. "
        f"{decided} of the gates ended within 0.01 of 0 or 1.",
        *(str(remark) for remark in (remarks if isinstance(remarks, list) else [])),
    )


def _course(run: Run) -> list[Markup]:
    pictures = []
    for key, title, up in (("open", "Gates that are open", "gates"), ("loss", "Loss during training", "loss")):
        series, before = [], 0.0  # stages follow one another, so steps go on
        for place, stage in enumerate(run.rows("stages")):
            dots = [
                Dot(before + x, y, None, None, [f"{stage.get('name')}, step {x:g}", f"{key} {words.short(y)}"])
                for note in rows(stage.get("notes"))
                if (x := number(note.get("step"))) is not None and (y := number(note.get(key))) is not None
            ]
            if dots:
                series.append(Series(str(stage.get("name")), f"c{place % 6}", dots))
                before = dots[-1].x
        if series:
            pictures.append(figure(title, line_chart(series, "step", up, title, bands=False)))
    return [*pictures, *_trade(run)]


def _trade(run: Run) -> list[Markup]:
    """V19 figure 7: the metric against the heads that are left."""
    metric = run.word("metric")
    name = words.metric_name(metric)
    dots = []
    for stage in run.rows("stages"):
        left, change = number(stage.get("left")), number(stage.get("change"))
        if left is not None and change is not None:
            tip = [
                f"{stage.get('name')}: {left:g} gated heads left",
                f"change of {name} {words.change(change, metric)}",
                f"95% interval {words.interval(stage, metric)}",
            ]
            dots.append(Dot(left, change, number(stage.get("low")), number(stage.get("high")), tip))
    if len(dots) < 2:
        return []
    dots.sort(key=lambda dot: dot.x)
    chart = line_chart([Series("", "c0", dots)], "gated heads left", f"change of {name}", f"{name} against heads left")
    return [figure(f"{words.capital(name)} against heads left", chart, note="bands are 95% intervals")]


def _stages(run: Run) -> Markup:
    metric = run.word("metric")
    columns: Columns = {
        "stage": lambda stage: stage.get("name"),
        "lambda": lambda stage: words.short(stage.get("price")),
        "gated heads left": lambda stage: words.count(stage.get("left")),
        words.metric_name(metric): lambda stage: words.score(stage.get("score"), metric),
        "change": lambda stage: words.change(stage.get("change"), metric),
        "95% interval": lambda stage: words.interval(stage, metric),
        "decided": lambda stage: words.share(stage.get("decided")),
    }
    return table(columns, run.rows("stages"))
