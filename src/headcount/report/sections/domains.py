"""Other data: do the same heads matter there? (M19 figure 2), and plain evaluations."""

from __future__ import annotations

from pathlib import PurePath

from headcount.report import words
from headcount.report.chart import figure
from headcount.report.facts import Facts, data_of
from headcount.report.markup import Markup
from headcount.report.runs import Run, number
from headcount.report.scatter import scatter_chart
from headcount.report.sections.layout import Columns, figures, section, sentences, table


def domains(facts: Facts) -> Markup | None:
    """Each comparison as a scatter."""
    runs = [run for run in facts.of("compare") if run.heads]
    if not runs:
        return None
    said = sentences(*map(_said, runs))
    return section("The same heads on other data", figures(*map(_picture, runs)), summary=said)


def _picture(run: Run) -> Markup:
    metric = run.word("metric")
    both = ((head, number(row.get("change")), number(row.get("change_against"))) for head, row in run.heads.items())
    points = [(str(head), x, y) for head, x, y in both if x is not None and y is not None]
    names = [run.arguments.get(key) for key in ("data", "against")]
    here, there = (
        PurePath(name).name if isinstance(name, str) else fallback
        for name, fallback in zip(names, ("these data", "other data"), strict=True)
    )
    return figure(
        f"Change of {words.metric_name(metric)} without each head",
        scatter_chart(points, here, there, metric=metric),
        note="dashed: the same change on both",
    )


def _said(run: Run) -> str:
    if remark := run.word("remark"):
        return remark
    r, p = run.number("pearson"), run.number("p")
    if r is None:
        return ""
    sure = "go together" if p is not None and p < 0.05 and r > 0 else "are not shown to go together"
    rank = run.number("spearman")
    ranks = f", Spearman r {rank:.2f}" if rank is not None else ""
    return (
        f"Over {len(run.heads)} heads, the effects on both data sets {sure}: Pearson r {r:.2f} (p "
        f"{words.p_value(p)}){ranks}."
    ).replace("-", words.MINUS)


def evaluations(facts: Facts) -> Markup | None:
    """Scores of the model as it is, and with some heads off."""
    runs = [run for run in facts.of("evaluate") if run.number("score") is not None]
    if not runs:
        return None
    columns: Columns = {
        "data": data_of,
        "metric": lambda run: words.metric_name(run.word("metric")),
        "score": lambda run: words.score(run.number("score"), run.word("metric")),
        "95% interval": lambda run: words.interval(run.content, run.word("metric"), signed=False),
        "heads off:": lambda run: ", ".join(map(str, run.listed("off"))) or "none",
        "change": lambda run: words.change(run.number("change"), run.word("metric")),
        "p": lambda run: words.p_value(run.number("p")),
    }
    return section("Evaluated", table(columns, runs))
