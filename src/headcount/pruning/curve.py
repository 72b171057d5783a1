"""Pruning curves: the metric as more and more heads really go (M19 section 4, figures 3, 4 and 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

from headcount.errors import HeadcountError
from headcount.evaluation import evaluate
from headcount.heads import Head
from headcount.pruning.splits import refuse_overlap
from headcount.runs import model_signature, versions
from headcount.scoring import Scores, importance
from headcount.stats import interval, paired_bootstrap
from headcount.structure import Anatomy, anatomy
from headcount.surgery import remove
from headcount.tasks import Metric, Task

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Point:
    """The metric with some heads really gone.

    pruned: their share of the heads that could go. low, high: 95% interval of the score. change, with its own
    interval: score minus that of the unpruned model, on the same examples. relative: score as a share of the
    unpruned model's. statistics: (N, S) of every example.
    """

    pruned: float
    removed: tuple[Head, ...]
    score: float
    low: float
    high: float
    change: float
    change_low: float
    change_high: float
    relative: float
    statistics: np.ndarray = field(repr=False, compare=False)


@dataclass(frozen=True, eq=False)
class Curve:
    """One order of heads, pruned step by step; kind None means all kinds together."""

    method: str
    kind: str | None
    points: tuple[Point, ...]
    metric: Metric
    reestimated: bool = False
    signature: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What `headcount curve --json` says of it."""
        names = ("pruned", "score", "low", "high", "change", "change_low", "change_high", "relative")
        points = [
            {**{name: getattr(point, name) for name in names}, "removed": [str(head) for head in point.removed]}
            for point in self.points
        ]
        return {"method": self.method, "kind": self.kind, "reestimated": self.reestimated, "points": points}


def pruning_curve(
    model: nn.Module,
    task: Task,
    scores: Scores | Sequence[Scores],
    step: float = 0.1,
    kinds: Sequence[str] | None = None,
    keep_at_least: int = 0,
    reestimate: bool = False,
    score_task: Task | None = None,
    allow_overlap: bool = False,
    progress: Progress | None = None,
) -> Any:
    """Remove more and more heads, the least important first, and measure what is left.

    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> from headcount.tasks import Classification
    >>> from headcount.tasks.toy import word_tokenizer
    >>> config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=20, pad_token_id=0)
    >>> model = BertForSequenceClassification(config).eval()
    >>> train = [{"text": "a fine film", "label": 1}, {"text": "dull", "label": 0}]
    >>> dev = [{"text": "fine", "label": 1}, {"text": "a dull film", "label": 0}]
    >>> train, dev = (Classification(rows, word_tokenizer("a fine dull film")) for rows in (train, dev))
    >>> curve = pruning_curve(model, dev, importance(model, train), step=0.5)
    >>> [point.pruned for point in curve.points], len(curve.points[1].removed)
    ([0.0, 0.5, 1.0], 4)

    task: on other data than the scores were estimated on; the same rows in both are refused unless `allow_overlap`.
    scores: of one method, or of several, for one curve each.
    step: a share of the heads, or a number of them. kinds: prune each of these kinds on its own, one curve each.
    keep_at_least: heads left in every site.
    reestimate: score the heads that are left again after each step, on `score_task` by the same method.
    Returns a `Curve`; a list of them if there are several scores or kinds.
    """
    several = [scores] if isinstance(scores, Scores) else list(scores)
    if reestimate and score_task is None:
        raise HeadcountError("re-estimation needs the data that scores are estimated on: pass score_task")
    for one in several:
        refuse_overlap(one.keys, task, "the score data", allow_overlap)
    if score_task is not None:
        refuse_overlap(score_task.keys(), task, "the score data", allow_overlap)
    each_kind: list[str | None] = [None] if kinds is None else list(kinds)
    lines = [(one, kind) for one in several for kind in each_kind]
    base = evaluate(model, task).of()
    curves = []
    for place, (one, kind) in enumerate(lines):
        follow = _Follow(model, one, score_task if reestimate else None, kind, keep_at_least)
        points = _points(task, follow, step, base, _part(progress, place, len(lines)))
        signature = {
            "model": model_signature(model),
            "task": task.signature(),
            "scores": one.signature,
            "step": step,
            "keep_at_least": keep_at_least,
            "reestimate": reestimate,
            "versions": versions(),
        }
        curves.append(Curve(one.method, kind, points, task.metric, reestimate, signature))
    return curves[0] if isinstance(scores, Scores) and kinds is None else curves


class _Follow:
    """Removes heads in an order that may be estimated again on the way."""

    def __init__(
        self, model: nn.Module, scores: Scores, score_task: Task | None, kind: str | None, keep_at_least: int
    ) -> None:
        self.model, self.scores, self.score_task, self.keep = model, scores, score_task, keep_at_least
        found = anatomy(model)
        found.check(scores.heads)
        self.wanted = set(of_kinds(found, None if kind is None else [kind]))
        missing = self.wanted - set(scores.heads)
        if missing:
            raise HeadcountError(f"the scores say nothing of {min(missing)}; score this very model first")
        self.total = len(self._candidates())
        self.removed: list[Head] = []

    def go_to(self, count: int) -> nn.Module:
        """The model with `count` heads gone."""
        if count > len(self.removed):
            if self.score_task is not None and self.removed:
                options = self.scores.signature.get("options", {})
                self.scores = importance(self.model, self.score_task, self.scores.method, **options)
            chosen = self._candidates()[: count - len(self.removed)]
            self.model = remove(self.model, chosen)
            self.removed += chosen
        return self.model

    def _candidates(self) -> list[Head]:
        here = anatomy(self.model).heads
        order = [head for head in self.scores.order() if head in self.wanted and head in set(here)]
        return removable(order, self.keep, here)


def _points(task: Task, follow: _Follow, step: float, base: np.ndarray, progress: Progress | None) -> tuple[Point, ...]:
    if not follow.total:
        raise HeadcountError("no head may go: every site has as few as keep_at_least asks for")
    numbers = counts(follow.total, step)
    points = []
    for place, count in enumerate(numbers):
        smaller = follow.go_to(count)
        statistics = base if count == 0 else evaluate(smaller, task).of()
        points.append(make_point(task.metric, base, statistics, follow.removed, follow.total))
        if progress is not None:
            progress((place + 1) / len(numbers))
    return tuple(points)


def make_point(metric: Metric, base: np.ndarray, statistics: np.ndarray, removed: Sequence[Head], total: int) -> Point:
    """A point of a curve from the statistics (N, S) of the unpruned and of the pruned model."""
    test = paired_bootstrap(base, statistics[None], metric.of_sums, resamples=1000)
    low, high = interval(statistics, metric.of_sums)
    score, whole = float(metric.of_sums(statistics.sum(0))), float(metric.of_sums(base.sum(0)))
    return Point(
        pruned=len(removed) / total,
        removed=tuple(removed),
        score=score,
        low=low,
        high=high,
        change=float(test.change[0]),
        change_low=float(test.low[0]),
        change_high=float(test.high[0]),
        relative=score / whole if whole else float("nan"),
        statistics=statistics,
    )


def _part(progress: Progress | None, place: int, of: int) -> Progress | None:
    return None if progress is None else lambda share: progress((place + share) / of)


def counts(total: int, step: float) -> list[int]:
    """Numbers of heads removed, from none to all of them, `step` more each time.

    >>> counts(72, 0.25)
    [0, 18, 36, 54, 72]
    >>> counts(8, 3)
    [0, 3, 6, 8]

    step: a share of the heads below 1 (M19: 0.1), or a whole number of them.
    """
    if not step > 0 or (step >= 1 and step != int(step)):
        raise HeadcountError(f"a step is a share of the heads, such as 0.1, or a number of them, not {step:g}")
    each = step * total if step < 1 else int(step)
    found = [min(total, round(each * number)) for number in range(int(total / max(each, 1e-9)) + 2)]
    return sorted({*found, total})


def removable(order: Sequence[Head], keep_at_least: int = 0, present: Iterable[Head] | None = None) -> list[Head]:
    """The heads of an order that may go, least important first, if every site keeps so many.

    >>> order = [Head("encoder", 0, 0), Head("encoder", 0, 1), Head("encoder", 1, 0)]
    >>> [str(head) for head in removable(order, keep_at_least=1)]
    ['encoder.0.0']

    present: all heads that are there, where the order names only some of them.
    """
    if keep_at_least < 0:
        raise HeadcountError(f"keep_at_least is a number of heads, not {keep_at_least}")
    room = Counter(head.site for head in (order if present is None else present))
    chosen = []
    for head in order:
        if room[head.site] > keep_at_least:
            room[head.site] -= 1
            chosen.append(head)
    return chosen


def of_kinds(found: Anatomy, kinds: Sequence[str] | None) -> list[Head]:
    """The model's heads of these kinds; a kind that it lacks is refused."""
    return list(found.heads_of(kinds))
