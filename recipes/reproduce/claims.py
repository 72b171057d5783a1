"""Which of M19's claims hold here: each judged by a stated rule, with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recipes.reproduce.ablation import ALPHA, lost, precision
from recipes.reproduce.pruning import KEPT, distinct_shots, height, prunable
from recipes.reproduce.running import Results

DISTINCT = 0.05  # of the score: an advantage over random order that counts as a distinction


@dataclass(frozen=True)
class Claim:
    """A claim, its rule, and the judge that says per experiment whether it holds, with the number behind it."""

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
        free = 1 - len(lost(run)) / len(run["heads"])
        found.append((name, free > 0.5, f"{free:.0%} of {len(run['heads'])} heads, ± {precision(run)} points"))
    return found


def _one_left(results: Results) -> list[tuple[str, bool, str]]:
    found = []
    for name, run in results.of("alone").items():
        free = len(run["layers"]) - len(lost(run, "layers"))
        said = f"{free} of {len(run['layers'])} layers, ± {precision(run, 'layers')} points"
        found.append((name, free >= len(run["layers"]) / 2, said))
    return found


def _prunable(results: Results) -> list[tuple[str, bool, str]]:
    found = []
    for name, run in results.of("curve").items():
        curve = run["curves"][0]
        total, share = len(curve["points"][-1]["removed"]), prunable(curve, run)
        gone = round(share * total)
        found.append((name, gone >= round(0.2 * total), f"{share:.1%} ({gone} of {total} heads)"))
    return found


def _cross(results: Results) -> list[tuple[str, bool, str]]:
    found = []
    for name, run in results.of("kinds").items():
        left = {curve["kind"]: height(curve, run) for curve in run["curves"]}
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
        f"turning off more than half of the heads, one at a time, loses nothing significant (p < {ALPHA:g}, "
        "uncorrected, as M19); "
        "± is half the width of a typical head's 95% interval",
        _one_by_one, "the fewer heads a model has, the more each one carries",
    ),
    Claim(
        "C2", "Layers can be reduced to one head",
        f"at least half of the layers show no significant loss (p < {ALPHA:g}) with one head, chosen on other data; "
        "± is half the width of a typical layer's 95% interval: smaller losses are not ruled out",
        _one_left, "a layer of a narrow model has fewer heads that could stand in for each other",
    ),
    Claim(
        "C3", "20-60% of the heads can be pruned",
        f"at least 20% of the heads (rounded to whole heads) can be pruned while {KEPT:.0%} of the score is kept",
        _prunable,
        "these models have 72 or 144 heads in 6 or 6 + 6 layers, M19's have 144 and 288; and 95% of a Matthews "
        "correlation or of BLEU on few examples is a narrow margin",
    ),
    Claim(
        "C4", "Cross-attention is the most sensitive", "its curve keeps the least of the score, mean over the curve",
        _cross, "captions are short and the two languages are close, so little cross-attention is enough",
    ),
    Claim(
        "C5", "The distinction emerges early in training",
        f"an order by importance beats random order by more than {DISTINCT:g} of the score before the last checkpoint, "
        "but not yet at the first",
        _early,
        "an epoch here is a few hundred updates on a small corpus; if the first checkpoint is distinct already, the "
        "distinction came even earlier than in the paper; with few sentences it is noisy",
    ),
    Claim(
        "C6", "Pruned models are faster", "the whole 95% interval of the speedup lies above 1, at every batch size",
        _faster, "the machine was too busy, or the batch too small to fill it",
    ),
)  # fmt: skip


def claims(results: Results) -> str:
    """One line each: verdict, numbers and rule, with a possible reason if it fails."""
    lines = []
    for one in CLAIMS:
        found = one.judge(results)
        numbers = "; ".join(f"{name}: {number}" for name, _, number in found)
        why = "" if all(holds for _, holds, _ in found) else f" Why it may differ: {one.if_not}."
        lines.append(
            f"- **{one.number}. {one.claim}: {verdict(found)}.** {numbers or 'No run'}. *Rule: {one.rule}.*{why}"
        )
    return "\n".join(lines)
