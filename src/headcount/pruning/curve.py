"""Pruning curves: the metric as more and more heads are removed (M19 section 4, figures 3, 4 and 6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from headcount.engine import Progress
from headcount.errors import HeadcountError, counted
from headcount.evaluation import evaluate
from headcount.heads import Head, counts
from headcount.pruning.search import SearchCheckpoint, cut_name
from headcount.pruning.search_methods import removable
from headcount.pruning.splits import resolve_overlap
from headcount.reporting import Shown
from headcount.runs import RunDirectory, model_signature, open_run, versions
from headcount.scoring import Scores, importance
from headcount.stats import change_bounds, interval
from headcount.structure import anatomy
from headcount.surgery import remove
from headcount.tasks import Metric, Task, digest, refuse_non_tasks


@dataclass(frozen=True)
class Point:
    """The metric of a model with some heads removed.

    pruned: their share of the removable heads, or of what all removable units cost. low, high: 95% interval of the
    score. change, with its own interval: score minus that of the unpruned model, on the same examples. relative: score
    as a share of the unpruned model's.
    statistics: (N, S) of every example. examples: how many there are, if the cut was decided on a part of the data; the
        score is then the unpruned model's on all of it, plus the change on that part.
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
    examples: int | None = None

    def __repr__(self) -> str:
        return f"<{counted(len(self.removed), 'unit')} removed ({self.pruned:.0%}): score {self.score:.4g}>"


@dataclass(frozen=True, eq=False)
class Curve(Shown):
    """Heads removed step by step in one order; kind None means all kinds together.

    remarks: what the user should know about the data. normalized: the order is that of normalised scores (M19).
    """

    method: str
    kind: str | None
    points: tuple[Point, ...]
    metric: Metric
    reestimated: bool = False
    signature: dict[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    normalized: bool = False

    def __repr__(self) -> str:
        first, last = self.points[0], self.points[-1]
        ends = " to ".join(f"{self.metric.written(point.score)} at {point.pruned:.0%}" for point in (first, last))
        kind = f" of {self.kind} heads" if self.kind else ""
        return f"<{self.method} curve{kind}, {counted(len(self.points), 'point')}: {self.metric.name} {ends}>"

    @property
    def n(self) -> int:
        """How many examples every point was measured on."""
        return len(self.points[0].statistics)

    def to_json(self) -> dict[str, Any]:
        """One of the `curves` that `headcount curve --json` prints."""
        names = ("pruned", "score", "low", "high", "change", "change_low", "change_high", "relative")
        points = [
            {**{name: getattr(point, name) for name in names}, "removed": [str(head) for head in point.removed]}
            for point in self.points
        ]
        order = {name: getattr(self, name) for name in ("method", "kind", "reestimated", "normalized")}
        return {**order, "points": points}


class Curves(Shown, list[Curve]):
    """Several curves on the same data; a list that is shown as one chart."""

    def to_json(self) -> dict[str, Any]:
        """The metric and the `curves` that `headcount curve --json` prints."""
        base = {"base": self[0].points[0].score, **self[0].metric.facts(), "n": self[0].n} if self else {}
        return {**base, "curves": [one.to_json() for one in self]}


def pruning_curve(
    model: nn.Module,
    task: Task,
    scores: Scores | Sequence[Scores],
    step: float = 0.1,
    kinds: Sequence[str] | None = None,
    keep_at_least: int = 0,
    reestimate: bool = False,
    score_task: Task | None = None,
    overlap: str = "refuse",
    run: str | Path | RunDirectory | None = None,
    progress: Progress | None = None,
) -> Any:
    """Remove more and more heads, the least important first, and measure the model that is left.

    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> from headcount.tasks import Classification
    >>> from headcount.tasks.text import word_tokenizer
    >>> config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=20, pad_token_id=0)
    >>> model = BertForSequenceClassification(config).eval()
    >>> train = [{"text": "a fine film", "label": 1}, {"text": "dull", "label": 0}]
    >>> dev = [{"text": "fine", "label": 1}, {"text": "a dull film", "label": 0}]
    >>> train, dev = (Classification(rows, word_tokenizer("a fine dull film")) for rows in (train, dev))
    >>> curve = pruning_curve(model, dev, importance(model, train), step=0.5)
    >>> [point.pruned for point in curve.points], len(curve.points[1].removed)
    ([0.0, 0.5, 1.0], 4)

    task: other data than the scores were estimated on.
    scores: of one method, or of several, for one curve each.
    step: a share of the heads, or a number of them. kinds: prune each of these kinds on its own, one curve each.
    keep_at_least: heads to keep in every site.
    reestimate: after each step, score the remaining heads again, on `score_task` by the same method.
    overlap: "refuse", "drop" or "allow" rows of the task that the scores were estimated on.
    run: a run directory that keeps every measured point; the same call resumes there.
    progress: called with the share done, from 0 to 1.
    Returns a `Curve`; `Curves`, a list of them, if there are several scores or kinds.
    """
    refuse_non_tasks(task=task, score_task=score_task or task)
    several = [scores] if isinstance(scores, Scores) or not isinstance(scores, Sequence) else list(scores)
    for one in several:
        if not isinstance(one, Scores):
            raise HeadcountError(
                f"scores is a {type(one).__name__}", advice="give {scores} what importance(model, task) returns"
            )
    if reestimate and score_task is None:
        raise HeadcountError("re-estimation needs the data that heads are scored on", advice="pass it as {score_task}")
    seen = {key for one in several for key in one.keys} | set(() if score_task is None else score_task.keys())
    task, remarks = resolve_overlap(seen, task, "the score data", overlap)
    each_kind: list[str | None] = [None] if kinds is None else list(kinds)
    signature = {
        "model": model_signature(model),
        "task": task.signature(),
        "step": step,
        "keep_at_least": keep_at_least,
        "reestimate": reestimate,
        "versions": versions(),
    }
    lines = [(one, kind) for one in several for kind in each_kind]
    curves = Curves()
    with open_run(run, {**signature, "kinds": kinds, "scores": [_scores_signature(one) for one in several]}) as kept:
        base = evaluate(model, task, run=kept, name=cut_name(())).of()
        for place, (one, kind) in enumerate(lines):
            choices = SearchCheckpoint(kept if reestimate else None, f"choice-{place}")
            removal = _Removal(model, one, score_task if reestimate else None, kind, keep_at_least, choices)
            points = _points(removal, task, base, step, kept, _part(progress, place, len(lines)))
            signed = {**signature, "scores": one.signature}
            curves.append(
                Curve(one.method, kind, points, task.metric, reestimate, signed, tuple(remarks), one.normalize)
            )
    return curves[0] if isinstance(scores, Scores) and kinds is None else curves


def _points(
    removal: _Removal, task: Task, base: np.ndarray, step: float, kept: RunDirectory | None, progress: Progress | None
) -> tuple[Point, ...]:
    numbers = counts(removal.total, step)
    points = []
    for place, count in enumerate(numbers):
        smaller = removal.model_without(count)
        statistics = base if count == 0 else evaluate(smaller, task, run=kept, name=cut_name(removal.removed)).of()
        points.append(make_point(task.metric, base, statistics, removal.removed, len(removal.removed) / removal.total))
        if progress is not None:
            progress((place + 1) / len(numbers))
    return tuple(points)


class _Removal:
    """Removes heads from a model in the order of their scores, which can be estimated again on the way."""

    def __init__(
        self,
        model: nn.Module,
        scores: Scores,
        score_task: Task | None,
        kind: str | None,
        keep_at_least: int,
        choices: SearchCheckpoint,
    ) -> None:
        self.model, self.scores, self.score_task, self.keep_at_least = model, scores, score_task, keep_at_least
        found = anatomy(model)
        other = next((unit for unit in scores.units if unit not in set(scores.heads)), None)
        if other is not None:
            raise HeadcountError(
                f"curves support heads only; got {other}", advice="score heads alone, or prune by cost"
            )
        found.check(scores.heads)
        self.heads = found.heads
        self.wanted = set(found.heads_of(None if kind is None else [kind]))
        missing = self.wanted - set(scores.heads)
        if missing:
            raise HeadcountError(f"{min(missing)} has no score", advice="score this model first")
        self.choices = choices
        self.total = len(self._candidates())
        self.removed: list[Head] = []

    def model_without(self, count: int) -> nn.Module:
        """The model with `count` heads removed, at least as many as before."""
        if count > len(self.removed):
            removed = self.choices.choice(count, self.heads, self.removed, lambda: self._choose(count))
            self.model = remove(self.model, removed[len(self.removed) :])
            self.removed = removed
        return self.model

    def _choose(self, count: int) -> list[Head]:
        if self.score_task is not None and self.removed:
            options = self.scores.signature.get("options", {})
            method, normalize = self.scores.method, self.scores.normalize
            self.scores = importance(self.model, self.score_task, method, normalize=normalize, **options)
        return [*self.removed, *self._candidates()[: count - len(self.removed)]]

    def _candidates(self) -> list[Head]:
        here = anatomy(self.model).heads
        order = [head for head in self.scores.order() if head in self.wanted and head in set(here)]
        return removable(order, self.keep_at_least, here)


def _scores_signature(scores: Scores) -> dict[str, Any]:
    return {**scores.signature, "method": scores.method, "order": digest([str(head) for head in scores.order()])}


def make_point(
    metric: Metric, base: np.ndarray, statistics: np.ndarray, removed: Sequence[Head], pruned: float
) -> Point:
    """A point of a curve from the statistics (N, S) of the unpruned and of the pruned model."""
    # Without a cut it is the same model, on any data.
    change_low, change_high = change_bounds(base, statistics[None], metric) if removed else ([0.0], [0.0])
    low, high = interval(statistics, metric)
    score, whole = float(metric.of(statistics)), float(metric.of(base))
    return Point(
        pruned=pruned,
        removed=tuple(removed),
        score=score,
        low=low,
        high=high,
        change=score - whole,
        change_low=float(change_low[0]),
        change_high=float(change_high[0]),
        relative=score / whole if whole else float("nan"),
        statistics=statistics,
    )


def _part(progress: Progress | None, place: int, of: int) -> Progress | None:
    return None if progress is None else lambda share: progress((place + share) / of)
