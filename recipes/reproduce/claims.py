"""Which of the papers' claims hold here: each decided by intervals, by a stated rule, with its numbers.

A claim holds if the intervals show it, is refuted if they show the contrary, and is undecided otherwise: there are too
few examples to tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recipes.reproduce.figures import in_points
from recipes.reproduce.pruning import KEPT, at_share, distinct_shots, kept_interval, prunable
from recipes.reproduce.running import Results
from recipes.reproduce.voita import agreement, beside_control, decided, gated, roles_of

MARGIN = 1.0  # points that a head, a layer or a pruned model may lose
SHARE, MIDDLE = 0.2, 0.6  # of the heads: M19's least that can be pruned; where orders and kinds are compared
ENCODER_LEFT = 10 / 48  # V19 figure 7: 38 of 48 encoder heads removed
HOLDS, REFUTED, UNDECIDED = "holds", "refuted", "undecided"
Judged = list[tuple[str, str, str]]  # experiment, verdict, the numbers behind it


@dataclass(frozen=True)
class Claim:
    """A claim, its rule, and the judge that decides it for each experiment."""

    number: str
    claim: str
    rule: str
    judge: Callable[[Results], Judged]
    if_not: str = ""


def verdict(found: Sequence[tuple[str, str, str]]) -> str:
    """
    >>> verdict([("a", "holds", ""), ("b", "undecided", "")])
    'holds for a; undecided for b'
    """
    if not found:
        return "not measured"
    by = {one: [name for name, said, _ in found if said == one] for one in (HOLDS, REFUTED, UNDECIDED)}
    several = [(said, names) for said, names in by.items() if names]
    if len(several) == 1:
        return several[0][0]
    return "; ".join(f"{said} for {', '.join(names)}" for said, names in several)


def bounds(row: Mapping[str, Any], run: Mapping[str, Any]) -> tuple[float, float]:
    """The interval of a change in points, positive for the better."""
    low, high = (in_points(row[end], run) for end in ("low", "high"))
    return (low, high) if run["higher_is_better"] else (-high, -low)


def within(rows: Sequence[Mapping[str, Any]], run: Mapping[str, Any]) -> tuple[int, int]:
    """How many changes are shown to be at most `MARGIN` points for the worse, and how many to be more."""
    ends = [bounds(row, run) for row in rows]
    return sum(low >= -MARGIN for low, _ in ends), sum(high < -MARGIN for _, high in ends)


def _most(results: Results, part: str, rows: str) -> Judged:
    found = []
    for name, run in results.of(part).items():
        shown, more = within(run[rows], run)
        n = len(run[rows])
        said = HOLDS if shown > n / 2 else REFUTED if more > n / 2 else UNDECIDED
        found.append((name, said, f"{shown} of {n} {rows} shown within {MARGIN:g} point, {more} shown to lose more"))
    return found


def _prunable(results: Results) -> Judged:
    found = []
    for name, run in results.of("curve").items():
        curve = run["curves"][0]
        point = at_share(curve, SHARE)
        low, high = kept_interval(point, curve, run)
        said = HOLDS if low >= KEPT else REFUTED if high < KEPT else UNDECIDED
        numbers = f"with {point['pruned']:.0%} pruned, {low:.1%} to {high:.1%} of the score is kept"
        found.append((name, said, f"{numbers}; every step keeps {KEPT:.0%} up to {prunable(curve, run):.0%}"))
    return found


def _cross(results: Results) -> Judged:
    found = []
    for name, run in results.of("kinds").items():
        ends = {curve["kind"]: kept_interval(at_share(curve, MIDDLE), curve, run) for curve in run["curves"]}
        cross, others = ends["cross"], [end for kind, end in ends.items() if kind != "cross"]
        below = all(cross[1] < low for low, _ in others)
        said = HOLDS if below else REFUTED if any(high < cross[0] for _, high in others) else UNDECIDED
        found.append((name, said, ", ".join(f"{kind} {low:.0%} to {high:.0%}" for kind, (low, high) in ends.items())))
    return found


def _early(results: Results) -> Judged:
    found = []
    losses = {f"{name}, loss": run for name, run in results.of("track-loss").items()}
    for name, run in {**results.of("track"), **losses}.items():
        shots = distinct_shots(run)
        states = [(shot["name"], distinction(shot, run)) for shot in shots]
        first, between = states[0][1], [state for _, state in states[1:-1]]
        if first == "distinct" or (between and all(state == "not" for state in between) and first == "not"):
            said = REFUTED
        else:
            said = HOLDS if first == "not" and "distinct" in between else UNDECIDED
        found.append((name, said, ", ".join(f"{shot} {state}" for shot, state in states)))
    return found


def distinction(shot: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """Whether the order by importance is distinct from random orders at a checkpoint, with 60% of the heads pruned."""
    ends = []
    for method in ("gradient", "random"):
        points = [point for point in shot["points"] if point["method"] == method]
        point = min(points, key=lambda one: abs(one["pruned"] - MIDDLE))
        ends.append((point["low"], point["high"]) if run["higher_is_better"] else (-point["high"], -point["low"]))
    (low, high), (_, best) = ends
    return "distinct" if low > best else "not" if high <= best else "open"


def _faster(results: Results) -> Judged:
    rows = [] if results.speed is None else results.speed["rows"]
    return [
        (
            f"batch {row['batch']}",
            HOLDS if row["low"] > 1 else REFUTED if row["high"] < 1 else UNDECIDED,
            f"{row['speedup'] - 1:+.1%} ({row['low'] - 1:+.1%} to {row['high'] - 1:+.1%})",
        )
        for row in rows
    ]


def _agrees(results: Results) -> Judged:
    found = []
    for name, run in results.of("relevance").items():
        if name in results.of("confidence"):
            overall, _ = agreement(run, results.of("confidence")[name])
            said = UNDECIDED if overall.spearman_p >= 0.01 else HOLDS if overall.spearman > 0 else REFUTED
            found.append((name, said, f"Spearman r {overall.spearman:+.2f}, p {overall.spearman_p:.1g}"))
    return found


def _specialised(results: Results) -> Judged:
    found = []
    for name, run in results.of("roles").items():
        heads = {role: len(some) for role, some in roles_of(run).items() if role in ("positional", "syntactic")}
        ends = {"positional": 0.9}
        states = []
        for row in run["best"]:
            if row["head"].startswith("encoder.") and row["role"] in ("positional", "syntactic"):
                states.append(decided(row["low"], row["high"], ends.get(row["role"], row["baseline"] + 0.1)))
        said = HOLDS if "shown" in states else REFUTED if set(states) == {"refuted"} else UNDECIDED
        found.append((name, said, ", ".join(f"{count} {role}" for role, count in heads.items())))
    return found


def _encoder(results: Results) -> Judged:
    found = []
    for name, runs in results.runs.items():
        states, numbers = [], []
        for price, run in gated(runs, "encoder").items():
            stage, other = run["stages"][-1], beside_control(runs, "encoder", price)
            low, high = bounds(other or stage, {**run, "base": run["before"]})
            numbers.append(f"{stage['left']} of {stage['of']} heads left, {low:+.2f} to {high:+.2f} points")
            if stage["left"] <= ENCODER_LEFT * stage["of"]:
                states.append(HOLDS if low >= -MARGIN else REFUTED if high < -MARGIN else UNDECIDED)
        if states:
            said = HOLDS if HOLDS in states else REFUTED if set(states) == {REFUTED} else UNDECIDED
            against = "the control" if "control-encoder" in runs else "the whole model, as the control was not computed"
            found.append((name, said, f"{', '.join(numbers)}, against {against}"))
    return found


CLAIMS = (
    Claim(
        "C1", "Most heads can be removed one by one",
        f"turning off one head, for more than half of the heads, is shown to lose at most {MARGIN:g} point (the whole "
        "95% interval); refuted if more than half are shown to lose more",
        lambda results: _most(results, "ablate", "heads"), "the fewer heads a model has, the more each one carries",
    ),
    Claim(
        "C2", "Layers can be reduced to one head",
        f"with one head, chosen on other data, more than half of the layers are shown to lose at most {MARGIN:g} point",
        lambda results: _most(results, "alone", "layers"),
        "a layer of a narrow model has fewer heads that could stand in for each other, and a point of a small test set "
        "is a few examples",
    ),
    Claim(
        "C3", "20-60% of the heads can be pruned",
        f"with 20% of the heads pruned by importance, the whole 95% interval keeps {KEPT:.0%} of the score",
        _prunable, "these models have 72 or 144 heads in 6 or 6 + 6 layers, M19's have 144 and 288",
    ),
    Claim(
        "C4", "Cross-attention is the most sensitive",
        "with 60% of one kind of heads pruned, the interval of the score that is kept lies below those of the others",
        _cross, "captions are short and the two languages are close, so little cross-attention is enough",
    ),
    Claim(
        "C5", "The distinction emerges early in training",
        "with 60% of the heads pruned, the 95% interval of the order by importance lies above all random orders at a "
        "checkpoint before the last, and not at the first",
        _early, "an epoch here is a few hundred updates on a small corpus",
    ),
    Claim(
        "C6", "Pruned models are faster", "the whole 95% interval of the speedup lies above 1, at every batch size",
        _faster, "the machine was too busy, or the batch too small to fill it",
    ),
    Claim(
        "V1", "Relevant heads are confident", "Spearman r over the encoder's heads is positive, p < 0.01", _agrees,
    ),
    Claim(
        "V2", "The encoder has positional and syntactic heads",
        "the whole 95% interval of some head's score is above V19's threshold; refuted if that of every best head is "
        "below", _specialised, "the model is narrow, and the treebank is not what it was trained on",
    ),
    Claim(
        "V3", "Most encoder heads can be pruned by gates",
        f"with at most 10 of 48 encoder heads left, as in V19, at most {MARGIN:g} point is shown to be lost against "
        "the whole model trained as long",
        _encoder, "gates were trained for few steps",
    ),
)  # fmt: skip


def claims(results: Results) -> str:
    """One line each: verdict, numbers and rule, with a possible reason if it does not hold."""
    lines = []
    for one in CLAIMS:
        found = one.judge(results)
        numbers = "; ".join(f"{name}: {number}" for name, _, number in found)
        differs = one.if_not and any(said != HOLDS for _, said, _ in found)
        why = f" Why it may differ: {one.if_not}." if differs else ""
        lines.append(
            f"- **{one.number}. {one.claim}: {verdict(found)}.** {numbers or 'No run'}. *Rule: {one.rule}.*{why}"
        )
    return "\n".join(lines)
