"""`track`: score and prune every checkpoint of a training run: when do heads become important (M19 section 6)?"""

from __future__ import annotations

import glob
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from headcount.engine import Progress
from headcount.errors import BadCheckpoint, HeadcountError, counted
from headcount.model_directory import by_number, fetch
from headcount.pruning import Curve, pruning_curve, resolve_overlap
from headcount.reporting import Shown
from headcount.runs import RunDirectory, fingerprint, open_run, versions
from headcount.scoring import importance
from headcount.stats import correlation
from headcount.structure import anatomy
from headcount.surgery import build_empty, load, model_class, read_config
from headcount.tasks import Metric, Task, refuse_non_tasks

SETTLED = 0.9  # Spearman r with the last checkpoint from which the order counts as settled


def track(
    checkpoints: Iterable[str | Path],
    task: Task,
    score_task: Task,
    *,
    step: float = 0.1,
    orders: int = 3,
    seed: int = 0,
    overlap: str = "refuse",
    run: str | Path | RunDirectory | None = None,
    loading: Callable[[str], nn.Module] | None = None,
    progress: Progress | None = None,
) -> Dynamics:
    """Score and prune each checkpoint of a training run, by importance and in random order.

    >>> import tempfile
    >>> from headcount import save
    >>> from headcount.tasks.classification import toy_classifier
    >>> model, task = toy_classifier()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     paths = [save(model, f"{folder}/epoch-{number}") for number in (1, 2)]
    ...     found = track([f"{folder}/epoch-*"], task, task, step=0.5, orders=1, overlap="allow")
    >>> found.with_last  # the same model twice
    [1.0]

    checkpoints: directories, or patterns such as "run/epoch-*"; those in one directory are sorted by their numbers, so
        that epoch-10 comes after epoch-2. All must have the same shape.
    task: data to measure the curves on. score_task: other data, to score heads on.
    step: a share of the heads, or a number of them. orders: how many random orders are averaged, from `seed` on.
    overlap: "refuse", "drop" or "allow" rows of `task` that are also in `score_task`.
    run: a run directory; a finished checkpoint is not computed again.
    loading: makes a model from a name; by default `load`, in float32.
    progress: called with the share done, from 0 to 1.
    """
    refuse_non_tasks(task=task, score_task=score_task)
    if isinstance(checkpoints, str) or not isinstance(checkpoints, Iterable):
        raise HeadcountError(
            f"checkpoints is {checkpoints!r:.60}", advice="give {checkpoints} a list of directories or patterns"
        )
    paths = in_order(checkpoints)
    if orders < 1:
        raise HeadcountError(f"{orders} random orders cannot be averaged", advice="give {orders} 1 or more")
    refuse_different(paths)
    task, remarks = resolve_overlap(score_task.keys(), task, "the score data", overlap)
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
            tracked = None if directory is None else read_tracked(name, directory.load_shard(shard), heads)
            if tracked is None:
                part = _part(progress, place, len(paths))
                content = measure(model, task, score_task, step, range(seed, seed + orders), part)
                kept = {"json": np.frombuffer(json.dumps(content).encode(), np.uint8)}
                if directory is not None:
                    directory.save_shard(shard, kept)
                tracked = read_tracked(name, kept, heads)
                assert tracked is not None
            found.append(tracked)
            if directory is not None:  # a report shows an unfinished run, too
                so_far = [asdict(one) for one in found]
                directory.write({**task.metric.facts(), "n": len(task), "checkpoints": so_far}, finished=False)
            if progress is not None:
                progress((place + 1) / len(paths))
        result = Dynamics(tuple(found), task.metric, remarks=tuple(remarks))
        if directory is not None:
            directory.write({**task.metric.facts(), "n": len(task), **result.to_json()})
    return result


def _load(path: str) -> nn.Module:
    return load(fetch(path), dtype=torch.float32)


def _part(progress: Progress | None, place: int, of: int) -> Progress | None:
    return None if progress is None else lambda share: progress((place + share) / of)


@dataclass(frozen=True)
class Step:
    """A point of a checkpoint's curve; relative: the score as a share of the unpruned checkpoint's own.

    gradient: low and high are the score's 95% interval. random: the mean over several orders, with the lowest and the
    highest of them; `removed` is None, as each order removes other heads.
    """

    method: str
    pruned: float
    removed: list[str] | None
    score: float
    low: float
    high: float
    relative: float


@dataclass(frozen=True)
class TrackedCheckpoint:
    """One checkpoint: its score, its heads' normalised importance and its curves.

    advantage: how much more of the score is left when heads are removed by importance than in random order, in shares
        of the unpruned checkpoint's score, averaged over the curve without its ends.
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
    progress: Progress | None,
) -> dict[str, Any]:
    """All that is kept of one checkpoint, as plain JSON."""
    gradient = importance(model, score_task)
    scores = [gradient, *(importance(model, score_task, "random", seed=seed) for seed in seeds)]
    curve, *others = pruning_curve(model, task, scores, step, overlap="allow", progress=progress)  # resolved
    sign = 1 if task.metric.higher_is_better else -1
    inner = [(a.relative, b.relative) for a, b in _beside(curve, others) if 0 < a.pruned < 1]
    return {
        "base": curve.points[0].score,
        "importance": {str(head): value for head, value in gradient.normalized().items()},
        "points": [asdict(step) for pair in _beside(curve, others) for step in pair],
        "advantage": float(np.mean([sign * (a - b) for a, b in inner])) if inner else math.nan,
    }


def read_tracked(name: str, kept: dict[str, np.ndarray] | None, heads: set[str]) -> TrackedCheckpoint | None:
    """A checkpoint from its shard; None if the shard is missing or does not fit."""
    try:
        content = json.loads(kept["json"].tobytes()) if kept is not None else {}
        points = tuple(map(_step, content["points"]))
        importance = {str(head): float(value) for head, value in content["importance"].items()}
        if set(importance) != heads:
            return None
        return TrackedCheckpoint(name, float(content["base"]), importance, points, float(content["advantage"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        return None


def _step(point: dict[str, Any]) -> Step:
    numbers = {key: float(point[key]) for key in ("pruned", "score", "low", "high", "relative")}
    method, removed = point["method"], point["removed"]
    if not all(isinstance(word, str) for word in (method, *(removed or ()))):
        raise ValueError("a method or a head is not text")
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
class Dynamics(Shown):
    """The checkpoints of a training run in order, and when the order of their heads settled.

    remarks: what the user should know about the data.
    """

    checkpoints: tuple[TrackedCheckpoint, ...]
    metric: Metric
    settled_from: float = SETTLED
    remarks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        names = ", ".join(one.name for one in self.checkpoints)
        return f"<{counted(len(self.checkpoints), 'checkpoint')}, {self.metric.name}: {names}>"

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
        """The first checkpoint from which r with the last stays at `settled_from` or more, if there is one."""
        found = None
        for one, r in reversed(list(zip(self.checkpoints, self.with_last, strict=False))):
            if not r >= self.settled_from:
                break
            found = one.name
        return found

    def in_words(self) -> str:
        """When the order of heads settled."""
        if len(self.checkpoints) < 2:
            return "Only one checkpoint: no other order to compare with."
        last = self.checkpoints[-1].name
        if self.settled is None:
            return f"The order of heads still changes before {last}: Spearman r {self.with_last[-1]:.2f} with it."
        return f"The order of heads settled at {self.settled}: Spearman r {self.settled_from:g} or more with {last}."

    def to_json(self) -> dict[str, Any]:
        """What `headcount track --json` prints."""
        return {
            "checkpoints": [asdict(one) for one in self.checkpoints],
            "with_next": self.with_next,
            "with_last": self.with_last,
            "settled": self.settled,
            "settled_from": self.settled_from,
            "in_words": self.in_words(),
            "remarks": list(self.remarks),
        }


def _rank_correlation(one: TrackedCheckpoint, other: TrackedCheckpoint) -> float:
    values = [[checkpoint.importance[head] for head in one.importance] for checkpoint in (one, other)]
    return correlation(*map(np.array, values)).spearman


def in_order(checkpoints: Iterable[str | Path]) -> list[str]:
    """The directories that names and patterns stand for; those in one directory are sorted by their numbers.

    >>> in_order(["run/epoch-1", "run/epoch-10", "run/epoch-2", "run"])
    ['run/epoch-1', 'run/epoch-2', 'run/epoch-10', 'run']
    """
    paths: list[Path] = []
    for given in map(str, checkpoints):
        matches = [given]
        if not Path(given).exists() and any(sign in given for sign in "*?["):
            matches = [match for match in glob.glob(given) if Path(match).is_dir()]
            if not matches:
                raise BadCheckpoint(f"no directory matches {given}")
        paths += map(Path, matches)
    if not paths:
        raise BadCheckpoint("no checkpoints to track; name one directory or more")
    if len(set(paths)) < len(paths):
        raise BadCheckpoint(f"{Counter(paths).most_common(1)[0][0]} is named twice; name each checkpoint once")
    neighbours = [sorted(some, key=by_number) for _, some in groupby(paths, key=lambda path: path.parent)]
    return [str(path) for some in neighbours for path in some]


def refuse_different(paths: Sequence[str]) -> None:
    """Refuse checkpoints that differ in class, heads or shapes of weights; only their configurations are read."""
    first: dict[str, Any] = {}
    for path in paths:
        directory = fetch(path)
        config = read_config(directory)
        model = build_empty(config, model_class(config, directory))
        shape: dict[str, Any] = {"class": type(model).__name__}
        shape |= {site.name: f"{counted(len(site.kept), 'head')} of {site.head_dim}" for site in anatomy(model).sites}
        shape |= {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
        first = first or shape
        for key in (*first, *shape):
            if first.get(key) != shape.get(key):
                here, there = shape.get(key, "missing"), first.get(key, "missing")
                raise BadCheckpoint(
                    f"{path} and {paths[0]} are not checkpoints of one training run: {key} is {here}, not {there}"
                )
