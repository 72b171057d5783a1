"""The one line above everything, where nothing was removed: the most that the runs say, in the order of its weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headcount.report import words
from headcount.report.facts import Facts, data_of
from headcount.report.runs import ALONE, number
from headcount.report.sections.alone import needing
from headcount.report.sections.curves import lasting
from headcount.report.sections.heads import significant
from headcount.report.sections.roles import found


def title(facts: Facts) -> str:
    """The first thing to be said; the names of the commands if there is nothing yet."""
    commands = ", ".join(dict.fromkeys(run.command for run in facts.runs))
    unfinished = not any(run.finished for run in facts.runs)
    return next(_titles(facts), f"headcount {commands} is not finished" if unfinished else f"What {commands} found")


def _titles(facts: Facts) -> Iterator[str]:
    for run in facts.of("ablate"):
        if run.heads:
            yield _alone(len(significant(run)), len(run.heads))
    for run in facts.of("importance"):
        if order := run.listed("order"):
            yield f"{order[-1]} matters most of {len(order)} heads"
    for run in facts.of(ALONE):
        if layers := run.rows("layers"):
            yield f"{len(layers) - len(needing(run))} of {len(layers)} layers do with one head each"
    for run in facts.of("curve"):
        if lasts := lasting(run):
            curve, share = max(lasts, key=lambda pair: pair[1])
            heads = f"{curve['kind']} heads" if isinstance(curve.get("kind"), str) else "heads"
            metric = words.metric_name(run.word("metric"))
            gone = f"{words.share(share)} of the {heads} gone ({curve.get('method')})"
            yield f"No significant loss of {metric} with {gone}"
    for run in facts.of("bench"):
        if measured := run.rows("rows"):
            sure = surely_faster(measured)
            at = "" if sure is None else f" at batch {words.count(sure.get('batch'))}"
            yield f"{sure['speedup'] - 1:.0%} faster{at}" if sure else "No sure gain in speed"
    for run in facts.of("roles"):
        if "heads" in run.content:
            named = len({head for head, _ in found(run)})
            yield f"{named or 'No'} {'head has' if named == 1 else 'heads have'} a role"
    for run in facts.of("track"):
        if said := run.word("in_words"):
            yield said.split(":")[0].rstrip(".")
    for run in facts.of("compare"):
        if (r := run.number("pearson")) is not None:
            yield f"Effects of heads on two data sets: r {words.correlation(r)}"
    for run in facts.of("evaluate"):
        if (score := run.number("score")) is not None:
            name = words.capital(words.metric_name(run.word("metric")))
            yield f"{name} {words.score(score, run.word('metric'))} on {data_of(run)}"


def _alone(matter: int, heads: int) -> str:
    """What was shown, and no more: that a head matters, not that it does not.

    >>> _alone(0, 72), _alone(1, 36)
    ('No single head of 72 is shown to matter', '1 of 36 heads matters on its own')
    """
    if not matter:
        return f"No single head of {heads} is shown to matter"
    return f"{matter} of {heads} heads {'matters on its own' if matter == 1 else 'matter on their own'}"


def surely_faster(measured: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The largest batch at which a gain in speed is sure and worth a word."""
    sure = [row for row in measured if (number(row.get("low")) or 0) > 1 and (number(row.get("speedup")) or 0) >= 1.02]
    return max(sure, key=lambda row: number(row.get("batch")) or 0, default=None)
