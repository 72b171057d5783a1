"""What was found, at the top: one line, one sentence, a few large numbers."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from headcount.report import words
from headcount.report.facts import Facts, data_of, total_of
from headcount.report.markup import Markup, join, tag
from headcount.report.runs import Run, mapping, model_name, number
from headcount.report.sections.layout import sentences
from headcount.report.sections.titles import surely_faster, title


def headline(facts: Facts) -> Markup:
    """The most that the runs of a model say."""
    cuts = [run for run in facts.of("prune", "gates") if run.finished]
    return join(
        tag("h1", _claim(facts, cuts[0]) if cuts else title(facts)),
        tag("p", model_name(facts.runs), class_="of"),
        tag("p", _sentence(facts, cuts[0]), class_="lead") if cuts else None,
        _tiles(facts, cuts[0]) if cuts else None,
        _line_that_loads(cuts[0]) if cuts else None,
        *(tag("p", remark, class_="note") for remark in _remarks(cuts[:1])),
    )


def _remarks(cuts: list[Run]) -> list[str]:
    said = [remark for cut in cuts if isinstance(all_said := cut.content.get("remarks"), list) for remark in all_said]
    return [remark for remark in said if isinstance(remark, str)]


def _claim(facts: Facts, cut: Run) -> str:
    """`36 of 72 heads removed, accuracy 0.8796 → 0.8784, not inferior within 0.5 points, 21% faster`."""
    metric = cut.word("metric")
    parts = [f"{len(cut.listed('removed'))} of {total_of(cut)} heads removed"]
    if cut.number("after") is not None:
        before, after = (words.score(cut.number(key), metric) for key in ("before", "after"))
        parts.append(f"{words.metric_name(metric)} {before} → {after}")
    if cut.content.get("noninferior") is True:
        parts.append(f"not inferior within {words.points(cut.number('max_drop'), metric)}")
    return ", ".join([*parts, *_gain(facts, cut)])


def _gain(facts: Facts, cut: Run) -> list[str]:
    """By how much it is faster, where that is sure: from the least to the most, if it is everywhere."""
    sure, bench = _sure(facts, cut), bench_of(facts, cut)
    if sure is None:
        return []
    measured = bench.rows("rows") if bench is not None else []
    gains = [row["speedup"] - 1 for row in measured if surely_faster([row])]
    if len(gains) == len(measured) > 1 and f"{min(gains):.0%}" != f"{max(gains):.0%}":
        return [f"{min(gains):.0%} to {max(gains):.0%} faster"]
    at = f" at batch {words.count(sure['batch'])}" if "batch" in sure else ""
    return [f"{sure['speedup'] - 1:.0%} faster{at}"]


def _sure(facts: Facts, cut: Run) -> dict[str, Any] | None:
    """The largest batch at which a gain in speed is sure and worth a word, or what `prune` measured itself."""
    bench = bench_of(facts, cut)
    return surely_faster(bench.rows("rows") if bench is not None else [mapping(cut.content.get("speed"))])


def _sentence(facts: Facts, cut: Run) -> str:
    metric = cut.word("metric")
    before, after = (words.score(cut.number(key), metric) for key in ("before", "after"))
    name = words.metric_name(metric)
    changed = f"{words.capital(name)} went from {before} to {after}"
    change = words.change(cut.number("change"), metric)
    if None not in (number(cut.content.get("low")), number(cut.content.get("high"))):
        changed += f" ({change}, 95% interval {words.interval(cut.content, metric)})"
    return sentences(f"{changed} on {data_of(cut, 'test')}.", verdict(cut), _faster(facts, cut))


def verdict(cut: Run) -> str:
    """Whether the drop was shown to stay within the budget."""
    budget = words.points(cut.number("max_drop"), cut.word("metric"))
    shown, needed = cut.content.get("noninferior"), cut.number("examples_needed")
    if shown is True:
        return f"Not inferior: shown to lose at most {budget} (one-sided, 95% confidence)."
    if shown is False:
        more = f"; about {words.count(needed)} examples would show it" if needed else ""
        return f"Not shown with this much data to lose at most {budget}{more}."
    return ""


def bench_of(facts: Facts, cut: Run) -> Run | None:
    """The measurement of the model that this cut saved."""
    made = PurePath(cut.word("path") or "").parts[-2:]
    for run in facts.of("bench"):
        if made and PurePath(run.word("pruned") or "").parts[-2:] == made:
            return run
    return None


def _faster(facts: Facts, cut: Run) -> str:
    bench = bench_of(facts, cut)
    if bench is not None and bench.word("verdict"):
        said = bench.word("verdict") or ""
        return f"Speed: {said}."
    speed = mapping(cut.content.get("speed"))
    times, low, high = (number(speed.get(key)) for key in ("speedup", "low", "high"))
    if times is None or low is None or high is None:
        return ""
    if low > 1:
        return f"It is {times - 1:.0%} faster (95% interval {low - 1:+.0%} to {high - 1:+.0%})."
    if high < 1:
        return f"It is {1 - times:.0%} slower here."
    return "No gain in speed was measured."


def _tiles(facts: Facts, cut: Run) -> Markup:
    metric = cut.word("metric")
    removed, total = len(cut.listed("removed")), total_of(cut)
    shown = cut.content.get("noninferior")
    tiles: list[Markup | None] = [
        _tile(f"{removed} of {total}", f"heads removed, {total - removed} left"),
        _tile(
            f"{words.score(cut.number('before'), metric)} → {words.score(cut.number('after'), metric)}",
            f"{words.metric_name(metric)}, on data that no choice was made on",
        ),
    ]
    if shown is not None:
        budget = words.points(cut.number("max_drop"), metric)
        tiles.append(
            _tile("Not inferior", f"loses at most {budget}: shown with 95% confidence", "good")
            if shown
            else _tile("Not shown", f"to lose at most {budget}, with this much data", "bad")
        )
    before, after = cut.number("parameters_before"), cut.number("parameters_after")
    if before and after:
        tiles.append(_tile(words.share(after / before - 1, 1), f"parameters: {before:,.0f} → {after:,.0f}"))
    tiles.append(_speed_tile(facts, cut))
    return tag("ul", *tiles, class_="tiles")


def _speed_tile(facts: Facts, cut: Run) -> Markup | None:
    sure = _sure(facts, cut)
    if sure is None:
        measured = bench_of(facts, cut) is not None or mapping(cut.content.get("speed"))
        return _tile("No sure gain", "in speed, as measured here") if measured else None
    if "batch" in sure:
        limit = f", limit {sure['limit']:.2f}×" if number(sure.get("limit")) else ""
        where = f"as fast at batch {words.count(sure['batch'])}, length {words.count(sure.get('length'))}{limit}"
    else:
        before, after = (words.count(sure.get(key)) for key in ("before", "after"))
        where = f"as fast in paired rounds; {before} → {after} examples a second"
    return _tile(f"{sure['speedup']:.2f}×", where)


def _line_that_loads(cut: Run) -> Markup | None:
    path = cut.word("path")
    return tag("pre", f"import headcount; model = headcount.load({path!r})") if path else None


def _tile(value: str, meaning: str, class_: str | None = None) -> Markup:
    return tag("li", tag("b", value), tag("span", meaning), class_=class_)
