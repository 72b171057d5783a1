"""Score and prune checkpoint after checkpoint."""

from __future__ import annotations

import glob
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from headcount.errors import BadCheckpoint, HeadcountError
from headcount.pruning import Curve, pruning_curve
from headcount.runs import RunDirectory, fingerprint, open_run, versions
from headcount.scoring import importance
from headcount.stats import correlation
from headcount.structure import anatomy
from headcount.surgery import build_empty, fetch, load, model_class, read_config
from headcount.tasks import Metric, Task

Progress = Callable[[float], None]
SETTLED = 0.9  # Spearman r with the last checkpoint from which on the order counts as settled


def track(
    checkpoints: Iterable[str | Path],
    task: Task,
    score_task: Task,
    *,
    step: float = 0.1,
    orders: int = 3,
    seed: int = 0,
    allow_overlap: bool = False,
    run: str | Path | RunDirectory | None = None,
    loading: Callable[[str], nn.Module] | None = None,
    progress: Progress | None = None,
) -> Dynamics:
    """Score and prune each checkpoint of a training run, by importance and in random order.

    checkpoints: directories, or patterns such as "run/epoch-*"; neighbours in one directory are put in the order of
    their numbers, so that epoch-10 comes after epoch-2. All must have the same shape.
    task: what the curves are measured on; score_task: other data, that heads are scored on. Both for all checkpoints.
    step: a share of the heads, or a number of them. orders: how many random orders are averaged, from `seed` on.
    run: a run directory; a finished checkpoint is not computed again.
    loading: makes a model of a name; default `load`, in float32.
    """
    paths = in_order(checkpoints)
    if orders < 1:
        raise HeadcountError(f"at least one random order is needed to compare with, not {orders}")
    refuse_different(paths)
    signature = {
        "checkpoints": paths, "tasks": [score_task.signature(), task.signature()], "step": step, "orders": orders,
        "seed": seed, "versions": versions(),
    }  # fmt: skip
    names = [Path(path).name for path in paths]
    names = [path if names.count(name) > 1 else name for path, name in zip(paths, names, strict=True)]
    found = []
    with open_run(run, signature) as directory:
        for place, (path, name) in enumerate(zip(paths, names, strict=True)):
            model = (loading or _load)(path)
            shard = f"checkpoint-{fingerprint(model)}"
            heads = {str(head) for head in anatomy(model).heads}
            told = None if directory is None else read_snapshot(name, directory.load_shard(shard), heads)
            if told is None:
                part = _part(progress, place, len(paths))
                content = measure(model, task, score_task, step, range(seed, seed + orders), allow_overlap, part)
                kept = {"json": np.frombuffer(json.dumps(content).encode(), np.uint8)}
                if directory is not None:
                    directory.save_shard(shard, kept)
                told = read_snapshot(name, kept, heads)
                assert told is not None
            found.append(told)
            if directory is not None:  # a report shows what there is so far
                shots = [asdict(one) for one in found]
                directory.write({**task.metric.facts(), "n": len(task), "checkpoints": shots}, finished=False)
            if progress is not None:
                progress((place + 1) / len(paths))
        result = Dynamics(tuple(found), task.metric)
        if directory is not None:
            directory.write({**task.metric.facts(), "n": len(task), **result.to_json()})
    return result


def _load(path: str) -> nn.Module:
    return load(fetch(path), dtype=torch.float32)


def _part(progress: Progress | None, place: int, of: int) -> Progress | None:
    return None if progress is None else lambda share: progress((place + share) / of)


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


@dataclass(frozen=True, eq=False)
class Dynamics:
    """The checkpoints of a training run in order, and when the order of their heads settled."""

    checkpoints: tuple[Snapshot, ...]
    metric: Metric
    settled_from: float = SETTLED

    @property
    def with_next(self) -> list[float]:
        """Spearman r of the heads' importance between each checkpoint and the next."""
        pairs = zip(self.checkpoints, self.checkpoints[1:], strict=False)
        return [_rank_correlation(one, other) for one, other in pairs]

    @property
    def with_last(self) -> list[float]:
        """Spearman r of the heads' importance between each checkpoint and the last."""
        return [_rank_correlation(one, self.checkpoints[-1]) for one in self.checkpoints[:-1]]

    @property
    def settled(self) -> str | None:
        """The first checkpoint from which on r with the last is `settled_from` or more, if there is one."""
        found = None
        for one, r in reversed(list(zip(self.checkpoints, self.with_last, strict=False))):
            if not r >= self.settled_from:
                break
            found = one.name
        return found

    def in_words(self) -> str:
        """When the order settled."""
        if len(self.checkpoints) < 2:
            return "One checkpoint: there is no other order to compare with."
        last = self.checkpoints[-1].name
        if self.settled is None:
            return f"The order of heads is still moving before {last}: Spearman r {self.with_last[-1]:.2f} with it."
        return (
            f"The order of heads has settled at {self.settled}: Spearman r {self.settled_from:g} or more with {last}."
        )

    def to_json(self) -> dict[str, Any]:
        """What `headcount track --json` says."""
        return {
            "checkpoints": [asdict(one) for one in self.checkpoints],
            "with_next": self.with_next,
            "with_last": self.with_last,
            "settled": self.settled,
            "settled_from": self.settled_from,
            "in_words": self.in_words(),
        }


def _rank_correlation(one: Snapshot, other: Snapshot) -> float:
    values = [[shot.importance[head] for head in one.importance] for shot in (one, other)]
    return correlation(*map(np.array, values)).spearman


def in_order(checkpoints: Iterable[str | Path]) -> list[str]:
    """The directories that names and patterns stand for; neighbours in one directory by their numbers.

    >>> in_order(["run/epoch-1", "run/epoch-10", "run/epoch-2", "run"])
    ['run/epoch-1', 'run/epoch-2', 'run/epoch-10', 'run']
    """
    paths: list[Path] = []
    for given in map(str, checkpoints):
        matches = [given]
        if not Path(given).exists() and any(sign in given for sign in "*?["):
            matches = [match for match in glob.glob(given) if Path(match).is_dir()]
            if not matches:
                raise BadCheckpoint(f"no directory is called {given}; name the checkpoints' directories")
        paths += map(Path, matches)
    if not paths:
        raise BadCheckpoint("there are no checkpoints to track; name one directory or more")
    if len(set(paths)) < len(paths):
        raise BadCheckpoint(f"{Counter(paths).most_common(1)[0][0]} is named twice; name each checkpoint once")
    families = [sorted(some, key=_by_numbers) for _, some in groupby(paths, key=lambda path: path.parent)]
    return [str(path) for some in families for path in some]


def refuse_different(paths: Sequence[str]) -> None:
    """Checkpoints of one training run have the same class, heads and weights; only configurations are read."""
    first: dict[str, Any] = {}
    for path in paths:
        directory = fetch(path)
        config = read_config(directory)
        model = build_empty(config, model_class(config, directory))
        shape: dict[str, Any] = {"class": type(model).__name__}
        shape |= {site.name: f"{len(site.kept)} heads of {site.head_dim}" for site in anatomy(model).sites}
        shape |= {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
        first = first or shape
        for key in (*first, *shape):
            if first.get(key) != shape.get(key):
                here, there = shape.get(key, "missing"), first.get(key, "missing")
                raise BadCheckpoint(
                    f"{path} has another shape than {paths[0]}: its {key} is {here}, not {there}; "
                    "track the checkpoints of one training run"
                )


def _by_numbers(path: Path) -> list[Any]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]
