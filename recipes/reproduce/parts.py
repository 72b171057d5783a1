"""What is computed for each experiment: one `headcount` command each, so that anyone can run it alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recipes.reproduce.experiments import Experiment

ORDERS = "gradient,oracle,random"


@dataclass(frozen=True)
class Part:
    """A kind of result: `command` gives the words after `headcount`, without `--limit` and `--out`.

    wanted: whether the experiment has what it takes. times: so many times as many sentences are translated, where that
    is cheap and the effects are small.
    """

    name: str
    title: str
    command: Callable[[Experiment], list[str]]
    wanted: Callable[[Experiment], bool] = lambda one: True
    times: int = 1


def _each(one: Experiment, role: str = "data") -> list[str]:
    data = one.data if role == "data" else str(one.other)
    return ["ablate", one.model, "--data", data, *one.aligned("--target-data", role), "--alpha", "0.01", *one.options]


def _best(one: Experiment) -> list[str]:
    return [*_each(one), "--mode", "all-but-one"]


def _alone(one: Experiment) -> list[str]:
    return [*_best(one), "--select-data", one.score, *one.aligned("--select-target-data", "score")]


def _curve(one: Experiment, *more: str) -> list[str]:
    score = ["--score-data", one.score, *one.aligned("--score-target-data", "score")]
    data = ["--data", one.data, *one.aligned("--target-data", "data")]
    return ["curve", one.model, *score, *data, *more, *one.options, *["--overlap", "allow"] * one.overlaps]


def _track(one: Experiment) -> list[str]:
    checkpoints = [f"{one.model}/{one.checkpoints}", one.model]
    return ["track", *checkpoints, *_curve(one)[2:], "--step", "0.2", "--orders", "2"]


def _is_pair(one: Experiment) -> bool:
    return one.name == "MRPC"  # M19 has only its curve


PARTS = (
    Part("ablate", "one head off", _each, lambda one: not _is_pair(one), times=5),
    Part("other", "one head off, out of domain", lambda one: _each(one, "other"), lambda one: one.other is not None, 5),
    Part("curve", "pruning curves", lambda one: _curve(one, "--methods", ORDERS)),
    Part("best", "all but one, chosen on the same data", _best, lambda one: not _is_pair(one)),
    Part("alone", "all but one, chosen on other data", _alone, lambda one: not _is_pair(one)),
    Part("kinds", "curves by kind", lambda one: _curve(one, "--kinds", "each"), lambda one: one.translates),
    Part("track", "training dynamics", _track, lambda one: one.checkpoints is not None),
)
