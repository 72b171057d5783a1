"""Which of M19's claims hold here: each by a rule that is stated, with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recipes.reproduce.alone import lost
from recipes.reproduce.one_head import ALPHA, precision
from recipes.reproduce.pruning import KEPT, height, prunable
from recipes.reproduce.results import Results
from recipes.reproduce.training import distinct_shots

DISTINCT = 0.05  # of the score: an advantage over random order that counts as a distinction


@dataclass(frozen=True)
class Claim:
    """A claim, the rule by which it is judged, and per experiment whether it holds and by which number."""

    number: str
    claim: str
    rule: str
    judge: Callable[[Results], list[tuple[str, bool, str]]]
    if_not: str


def verdict(found: Sequence[tuple[str, bool, str]]) -> str:
    """
    >>> verdict([("a", True, ""), ("b", False, "")])
    'holds for a; not for b'
    """
    good, bad = ([name for name, holds, _ in found if holds is wanted] for wanted in (True, False))
    if not found:
        return "not measured"
    if not bad:
        return "holds"
    return f"holds for {', '.join(good)}; not for {', '.join(bad)}" if good else "does not hold"


def _one_by_one(results: Results) -> list[tuple[str, bool, str]]:
    found = []
    for name, run in results.of("ablate").items():
        needed = sum(row["p"] < ALPHA and row["change"] < 0 for row in run["heads"])
        free = 1 - needed / len(run["heads"])
        found.append((name, free > 0.5, f"{free:.0%} of {len(run['heads'])} heads, ± {precision(run)} points"))
    return found


def _one_left(results: Results) -> list[tuple[str, bool, str]]:
    found = []
    for name, run in results.of("alone").items():
        free = len(run["layers"]) - len(lost(run))
        said = f"{free} of {len(run['layers'])} layers, ± {precision(run, 'layers')} points"
        found.append((name, free >= len(run["layers"]) / 2, said))
    return found


def _prunable(results: Results) -> list[tuple[str, bool, str]]:
    curves = {name: run["curves"][0] for name, run in results.of("curve").items()}
    found = []
    for name, curve in curves.items():
        total, share = len(curve["points"][-1]["removed"]), prunable(curve)
        gone = round(share * total)
        found.append((name, gone >= round(0.2 * total), f"{share:.1%} ({gone} of {total} heads)"))
    return found


def _cross(results: Results) -> list[tuple[str, bool, str]]:
    found = []
    for name, run in results.of("kinds").items():
        left = {curve["kind"]: height(curve) for curve in run["curves"]}
        said = ", ".join(f"{kind} {value:.2f}" for kind, value in left.items())
        found.append((name, min(left, key=lambda kind: left[kind]) == "cross", said))
    return found


def _early(results: Results) -> list[tuple[str, bool, str]]:
    found = []
    for name, run in results.of("track").items():
        gains = {shot["name"]: shot["advantage"] for shot in distinct_shots(run)}
        values = list(gains.values())
        distinct = [shot for shot, gain in gains.items() if gain > DISTINCT]
        holds = len(values) > 1 and not values[0] > DISTINCT and any(gain > DISTINCT for gain in values[:-1])
        first = f"first distinct at {distinct[0]}" if distinct else "never distinct"
        found.append((name, holds, f"{first} ({', '.join(f'{shot} {gain:+.2f}' for shot, gain in gains.items())})"))
    return found


def _faster(results: Results) -> list[tuple[str, bool, str]]:
    rows = [] if results.speed is None else results.speed["rows"]
    return [(f"batch {row['batch']}", row["low"] > 1, f"{row['speedup'] - 1:+.1%}") for row in rows]


CLAIMS = (
    Claim(
        "C1", "Most heads can be removed one by one",
        f"more than half of the heads are no significant loss when off (p < {ALPHA:g}, uncorrected, as M19); "
        "± is half the width of a typical head's 95% interval",
        _one_by_one, "the fewer heads a model has, the more each one carries",
    ),
    Claim(
        "C2", "Layers can be reduced to one head",
        f"at least half of the layers show no significant loss (p < {ALPHA:g}) with one head, chosen on other data; "
        "± is half the width of a typical layer's 95% interval: smaller losses may be there",
        _one_left, "a layer of a narrow model has fewer heads that could stand in for each other",
    ),
    Claim(
        "C3", "20-60% of the heads can be pruned",
        f"20% of the heads (rounded to whole heads) or more can go while {KEPT:.0%} of the score stays", _prunable,
        "these models have 72 or 144 heads in 6 or 6 + 6 layers where M19's have 144 and 288; and 95% of a Matthews "
        "correlation or of BLEU on few examples is a narrow margin",
    ),
    Claim(
        "C4", "Cross-attention is the most sensitive", "its curve leaves the least of the score, mean over the curve",
        _cross, "captions are short and the two languages close, so that much can be said without looking back often",
    ),
    Claim(
        "C5", "The distinction emerges early in training",
        f"an order by importance beats random order by more than {DISTINCT:g} of the score before the last checkpoint, "
        "but not yet at the first",
        _early,
        "an epoch here is a few hundred updates on a small corpus; where the first checkpoint is distinct already, the "
        "distinction came even earlier than in the paper, and where few sentences are translated it is noisy",
    ),
    Claim(
        "C6", "Pruned models are faster", "the whole 95% interval of the speedup lies above 1, at every batch size",
        _faster, "the machine was too busy to tell, or the batch too small to fill it",
    ),
)  # fmt: skip


def claims(results: Results) -> str:
    """One line each: verdict, numbers, rule; and why where it fails."""
    lines = []
    for one in CLAIMS:
        found = one.judge(results)
        numbers = "; ".join(f"{name}: {number}" for name, _, number in found)
        why = "" if all(holds for _, holds, _ in found) else f" Why it may differ: {one.if_not}."
        lines.append(
            f"- **{one.number}. {one.claim}: {verdict(found)}.** {numbers or 'No run'}. *Rule: {one.rule}.*{why}"
        )
    return "\n".join(lines)
