"""Single ablation as importance, which M19 calls the oracle order."""

from __future__ import annotations

import numpy as np
from torch import nn

from headcount.engine import Progress
from headcount.evaluation import Outcomes, evaluate
from headcount.runs import RunDirectory
from headcount.structure import anatomy
from headcount.tasks import Task


def oracle(
    model: nn.Module, task: Task, *, run: RunDirectory | None = None, progress: Progress | None = None
) -> np.ndarray:
    """How much worse the metric is with each head off, divided among the examples: (examples, heads).

    This is one sweep, kept in the run directory if there is one; the rest is arithmetic on its outcomes.
    """
    masks = [frozenset(), *(frozenset({head}) for head in anatomy(model).heads)]
    return drops(evaluate(model, task, masks, run=run, name="oracle", progress=progress))


def drops(outcomes: Outcomes) -> np.ndarray:
    """Each head's drop in the metric, divided among the examples: (examples, heads).

    For a metric that is a mean over examples, as accuracy is, a row is the example's own drop. For others it is the
    jackknife's pseudo-value, N times the drop minus N-1 times the drop without the example, shifted so that the mean
    over the examples is the drop itself.

    >>> from headcount.tasks.metrics import CLASSIFICATION
    >>> values = np.array([[[1.0, 1], [1, 1]], [[1, 1], [1, 0]]])  # (masks, N, S): the head off loses the second one
    >>> drops(Outcomes((frozenset(), frozenset()), values, CLASSIFICATION["accuracy"])).tolist()
    [[0.0], [1.0]]

    outcomes: of the whole model, then of one mask per head.
    """
    metric, values = outcomes.metric, outcomes.values  # (M, N, S)
    sign = 1.0 if metric.higher_is_better else -1.0
    n = values.shape[1]
    sums = values.sum(1, keepdims=True)  # (M, 1, S)
    whole = np.asarray(metric.of_sums(sums))[:, 0]  # (M,)
    drop = sign * (whole[0] - whole[1:])  # (H,)
    if n == 1:
        return drop[None]
    without = np.asarray(metric.of_sums(sums - values))  # (M, N), each example left out in turn
    pseudo = n * drop[:, None] - (n - 1) * sign * (without[0] - without[1:])  # (H, N)
    return (pseudo - pseudo.mean(1, keepdims=True) + drop[:, None]).T
