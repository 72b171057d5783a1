"""One checkpoint: its heads' importance, its pruning curve, and that curve in random order."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import nn

from headcount.importance import importance
from headcount.pruning import Curve, pruning_curve
from headcount.tasks import Task

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Step:
    """A point of a checkpoint's curve; relative: the score as a share of the whole checkpoint's own.

    gradient: low and high are the score's 95% interval. random: the mean over several orders, from the lowest to the
    highest of them; `removed` is None, as each of them removes other heads.
    """

    method: str
    pruned: float
    removed: list[str] | None
    score: float
    low: float
    high: float
    relative: float


@dataclass(frozen=True)
class Snapshot:
    """One checkpoint: its score, its heads' normalised importance, its curves, and what the order is worth.

    advantage: how much more of the score is left by importance than in random order, in shares of the whole
    checkpoint's score, mean over the curve without its ends.
    """

    name: str
    base: float
    importance: dict[str, float]
    points: tuple[Step, ...]
    advantage: float


def measure(
    model: nn.Module,
    task: Task,
    score_task: Task,
    step: float,
    seeds: Sequence[int],
    allow_overlap: bool,
    progress: Progress | None,
) -> dict[str, Any]:
    """All that is kept of one checkpoint, as plain JSON."""
    gradient = importance(model, score_task)
    scores = [gradient, *(importance(model, score_task, "random", seed=seed) for seed in seeds)]
    curve, *others = pruning_curve(model, task, scores, step, allow_overlap=allow_overlap, progress=progress)
    sign = 1 if task.metric.higher_is_better else -1
    inner = [(a.relative, b.relative) for a, b in _beside(curve, others) if 0 < a.pruned < 1]
    return {
        "base": curve.points[0].score,
        "importance": {str(head): value for head, value in gradient.normalized().items()},
        "points": [asdict(step) for pair in _beside(curve, others) for step in pair],
        "advantage": float(np.mean([sign * (a - b) for a, b in inner])) if inner else math.nan,
    }


def read_snapshot(name: str, kept: dict[str, np.ndarray] | None, heads: set[str]) -> Snapshot | None:
    """A checkpoint as its shard tells it; None if there is no shard, or one that makes no sense."""
    try:
        content = json.loads(kept["json"].tobytes()) if kept is not None else {}
        points = tuple(map(_step, content["points"]))
        importance = {str(head): float(value) for head, value in content["importance"].items()}
        if set(importance) != heads:
            return None
        return Snapshot(name, float(content["base"]), importance, points, float(content["advantage"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        return None


def _step(point: dict[str, Any]) -> Step:
    numbers = {key: float(point[key]) for key in ("pruned", "score", "low", "high", "relative")}
    method, removed = point["method"], point["removed"]
    if not all(isinstance(word, str) for word in (method, *(removed or ()))):
        raise ValueError("a method or a head is no text")
    return Step(method, removed=removed, **numbers)


def _beside(curve: Curve, others: Sequence[Curve]) -> list[tuple[Step, Step]]:
    """Each point by importance with the mean of the random orders at the same share."""
    pairs = []
    for point, *rest in zip(curve.points, *(other.points for other in others), strict=True):
        scores = [other.score for other in rest]
        removed = [str(head) for head in point.removed]
        ours = Step("gradient", point.pruned, removed, point.score, point.low, point.high, point.relative)
        relative = float(np.mean([other.relative for other in rest]))
        random = Step("random", point.pruned, None, float(np.mean(scores)), min(scores), max(scores), relative)
        pairs.append((ours, random))
    return pairs
