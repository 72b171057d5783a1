"""What was found, at the top of the page: one line, one sentence, a few large numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headcount.reporting import numbers
from headcount.reporting.heads import harmed_layers, significant, with_role
from headcount.reporting.markup import Markup, capital, join, sentences, tag
from headcount.reporting.numbers import number
from headcount.reporting.pruning import without_loss
from headcount.reporting.runs import ALL_BUT_ONE, UNNAMED, ModelRuns, RunRecord, mapping
from headcount.reporting.speed import benchmark_of, certain_gain
from headcount.reporting.training import order_settled


def headline(model: ModelRuns, named: bool = True) -> Markup:
    """The strongest claim that the runs of a model support; what was removed, if anything was.

    named: below it, the directory or hub id of the model.
    """
    name = tag("p", model.name, class_="of") if named and model.name != UNNAMED else None
    cut = next(iter(model.cuts), None)
    if cut is None:
        return join(tag("h1", _title(model)), name)
    path = cut.text("path")
    return join(
        tag("h1", _claim(model, cut)),
        name,
        tag("p", sentences(_change(cut), cut.text("verdict"), _speed(model, cut)), class_="lead"),
        tag("ul", *_tiles(model, cut), class_="tiles"),
        tag("pre", f"import headcount; model = headcount.load({path!r})") if path else None,
        *(tag("p", remark, class_="note") for remark in cut.texts("remarks")),
    )


# --------------------------------------------------------------------------------------------------- units were removed


def _claim(model: ModelRuns, cut: RunRecord) -> str:
    """What was removed and what that did, first the speed where the cut was made for it.

    `36 of 72 heads removed, accuracy 0.8796 → 0.8784, non-inferior (drop ≤ 0.5 points), 21% faster`, or
    `2.10 times as fast, accuracy 0.8796 → 0.8784, non-inferior (drop ≤ 1 point): 30 of 72 heads and … removed`.
    """
    removed, parts = f"{cut.what_was_removed} removed", list[str]()
    if cut.number("after") is not None:
        parts.append(f"{cut.metric.name} {_before_and_after(cut)}")
    if cut.content.get("noninferior") is True:
        parts.append(f"non-inferior ({cut.metric.limit(cut.number('max_drop'))})")
    if cut.is_for_speed:
        return f"{', '.join([*_gain(model, cut), *parts]) or 'Result'}: {removed}"
    return ", ".join([removed, *parts, *_gain(model, cut)])


def _before_and_after(cut: RunRecord) -> str:
    return " → ".join(cut.metric.score(cut.number(key)) for key in ("before", "after"))


def _timings(model: ModelRuns, cut: RunRecord) -> list[dict[str, Any]]:
    """The rows of the benchmark of this cut, or the one timing that `prune` made itself."""
    bench = benchmark_of(model, cut)
    return bench.rows("rows") if bench is not None else [mapping(cut.content.get("speed"))]


def _gain(model: ModelRuns, cut: RunRecord) -> list[str]:
    """How much faster it certainly is: at every batch size, or else at the largest where it is.

    Where the cut was made for speed and none is certain, how many times fewer FLOPs it takes.
    """
    rows = _timings(model, cut)
    gain = certain_gain(rows)
    if gain is None:
        fewer = _times_fewer(cut)
        return [f"{fewer:.2f} times fewer FLOPs"] if cut.is_for_speed and fewer else []
    write, unit = (_times, "times as fast") if cut.is_for_speed else (_percent, "faster")
    speedups = [row["speedup"] for row in rows if certain_gain([row])]
    least, most = write(min(speedups)), write(max(speedups))
    if len(speedups) == len(rows) > 1 and least != most:
        return [f"{least} to {most} {unit}"]
    return [_faster(gain, cut.is_for_speed)]


def _faster(row: dict[str, Any], in_times: bool = False) -> str:
    at = f" at batch {numbers.count(row['batch'])}" if "batch" in row else ""
    return f"{_times(row['speedup'])} times as fast{at}" if in_times else f"{_percent(row['speedup'])} faster{at}"


def _times(speedup: float) -> str:
    return f"{speedup:.2f}"


def _percent(speedup: float) -> str:
    return f"{speedup - 1:.0%}"


def _times_fewer(cut: RunRecord) -> float | None:
    """How many times fewer FLOPs one pass takes; None if the run does not say."""
    before, after = cut.number("flops_before"), cut.number("flops_after")
    return before / after if before and after and before > 0 and after > 0 else None


def _change(cut: RunRecord) -> str:
    metric = cut.metric
    before, after = (metric.score(cut.number(key)) for key in ("before", "after"))
    change = ""
    if None not in (cut.number("low"), cut.number("high")):
        interval = metric.change_interval(cut.content)
        change = f" ({metric.change(cut.number('change'))}, 95% interval {interval})"
    return f"{capital(metric.name)} went from {before} to {after}{change} on {cut.data('test')}."


def _speed(model: ModelRuns, cut: RunRecord) -> str:
    bench = benchmark_of(model, cut)
    if bench is not None and bench.text("verdict"):
        return f"Speed: {bench.text('verdict')}."
    speed = mapping(cut.content.get("speed"))
    times, low, high = (number(speed.get(key)) for key in ("speedup", "low", "high"))
    if times is None or low is None or high is None:
        return ""
    if low > 1 and cut.is_for_speed:
        return f"It is {_times(times)} times as fast (95% interval {numbers.interval(speed, _times)})."
    if low > 1:
        ends = numbers.interval(speed, lambda end: numbers.write(end - 1, "+.0%"))
        return f"It is {times - 1:.0%} faster (95% interval {ends})."
    return f"It is {1 - times:.0%} slower." if high < 1 else "No speedup was measured."


def _tiles(model: ModelRuns, cut: RunRecord) -> Iterator[Markup]:
    metric, timings = cut.metric, _timings(model, cut)
    speed = _speed_tile(certain_gain(timings)) if any(timings) else None
    if speed is not None and cut.is_for_speed:
        yield speed
    heads, neurons = len(cut.listed("removed")), cut.removed_neurons
    if heads or not neurons:
        yield _tile(f"{heads} of {cut.total_heads}", f"heads removed, {cut.total_heads - heads} left")
    if neurons:
        left = cut.total_neurons - neurons
        yield _tile(f"{neurons:,} of {cut.total_neurons:,}", f"neurons removed, {left:,} left")
    yield _tile(_before_and_after(cut), f"{metric.name} on held-out examples")
    shown = cut.content.get("noninferior")
    if isinstance(shown, bool):
        limit = f"{metric.limit(cut.number('max_drop'))}, 95% confidence"
        yield _tile("Non-inferior" if shown else "Not shown", limit if shown else f"to be non-inferior: {limit}", shown)
    before, after = cut.number("parameters_before"), cut.number("parameters_after")
    if before and after:
        yield _tile(numbers.share(after / before - 1, 1), f"parameters: {before:,.0f} → {after:,.0f}")
    if fewer := _times_fewer(cut):
        yield _tile(numbers.share(1 / fewer - 1, 1), f"FLOPs: {fewer:.2f} times fewer")
    if speed is not None and not cut.is_for_speed:
        yield speed


def _speed_tile(gain: dict[str, Any] | None) -> Markup:
    if gain is None:
        return _tile("No certain speedup", "with the settings that were measured")
    if "batch" in gain:
        limit = f", FLOP limit {gain['limit']:.2f}×" if number(gain.get("limit")) else ""
        at = f"batch {numbers.count(gain['batch'])}, length {numbers.count(gain.get('length'))}"
        return _tile(f"{gain['speedup']:.2f}×", f"as fast at {at}{limit}")
    rates = " → ".join(numbers.count(gain.get(key)) for key in ("before", "after"))
    return _tile(f"{gain['speedup']:.2f}×", f"as fast in paired rounds; {rates} examples per second")


def _tile(value: str, meaning: str, good: bool | None = None) -> Markup:
    class_ = None if good is None else "good" if good else "bad"
    return tag("li", tag("b", value), tag("span", meaning), class_=class_)


# -------------------------------------------------------------------------------------------------- nothing was removed


def _title(model: ModelRuns) -> str:
    """The strongest finding; the names of the commands if there is none yet."""
    commands = ", ".join(dict.fromkeys(run.command for run in model.runs))
    unfinished = not any(run.finished for run in model.runs)
    return next(_findings(model), f"headcount {commands} is not finished" if unfinished else f"Results of {commands}")


def _findings(model: ModelRuns) -> Iterator[str]:
    """What each run found in one line, the strongest kind of finding first."""
    for run in model.of("ablate"):
        if run.heads:
            yield _heads_that_matter(len(significant(run)), len(run.heads))
    for run in model.of("importance"):
        if order := run.listed("order"):
            yield f"{order[-1]} is the most important of {len(order)} heads"
    for run in model.of(ALL_BUT_ONE):
        if layers := run.rows("layers"):
            enough = len(layers) - len(harmed_layers(run))
            yield f"{enough} of {len(layers)} layers show no significant loss with one head each"
    for run in model.of("curve"):
        if found := without_loss(run):
            curve, share = max(found, key=lambda pair: pair[1])
            heads = f"{curve['kind']} heads" if isinstance(curve.get("kind"), str) else "heads"
            removed = f"{numbers.share(share)} of the {heads} removed ({curve.get('method')})"
            yield f"No significant loss of {run.metric.name} with {removed}"
    for run in model.of("bench"):
        if rows := run.rows("rows"):
            gain = certain_gain(rows)
            yield "No certain speedup" if gain is None else _faster(gain)
    for run in model.of("roles"):
        if "heads" in run.content:
            named = len({head for head, _ in with_role(run)})
            yield f"{named or 'No'} {'head has' if named == 1 else 'heads have'} a role"
    for run in model.of("track"):
        if settled := order_settled(run):
            yield settled
    for run in model.of("compare"):
        if (r := run.number("pearson")) is not None:
            yield f"Effects of heads on two data sets: Pearson r {numbers.write(r, '.2f')}"
    for run in model.of("evaluate"):
        if (score := run.number("score")) is not None:
            yield f"{capital(run.metric.name)} {run.metric.score(score)} on {run.data()}"
    for run in model.of("view"):
        if (texts := run.number("n")) is not None:
            yield f"Heads at work on {numbers.count(texts)} {'text' if texts == 1 else 'texts'}"


def _heads_that_matter(matter: int, heads: int) -> str:
    """What ablation can show: that a head matters, never that it does not.

    >>> _heads_that_matter(0, 72), _heads_that_matter(1, 36)
    ('None of 72 heads is shown to matter on its own', '1 of 36 heads matters on its own')
    """
    if not matter:
        return f"None of {heads} heads is shown to matter on its own"
    return f"{matter} of {heads} heads {'matters on its own' if matter == 1 else 'matter on their own'}"
