"""What `train_gates` shall do: its stages, and which data trains and which proves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headcount.errors import HeadcountError
from headcount.pruning.overlap import refuse_overlap
from headcount.tasks import Task

HELD_OUT, AT_MOST = 0.1, 1000  # of the data, if there is no test data
FIRST_PRICE = 1e-3  # where steering begins


def plan_stages(lam: Any, target: Any, total: int) -> list[tuple[float, int | None]]:
    """(price, wanted number of open gates) of each stage."""
    if (lam is None) == (target is None):
        raise HeadcountError("say what an open gate costs (lambda), or how many heads shall stay (target heads)")
    if lam is not None:
        prices = [float(price) for price in (lam if isinstance(lam, Sequence) else [lam])]
        if not prices or any(not price > 0 for price in prices):
            raise HeadcountError(f"lambda is the price of an open gate, above 0; got {prices}")
        return [(price, None) for price in prices]
    wanted = [int(number) for number in (target if isinstance(target, Sequence) else [target])]
    if not wanted or any(not 1 <= number < total for number in wanted):
        raise HeadcountError(f"of {total} heads with gates, 1 to {total - 1} can stay; got {wanted}")
    if sorted(wanted, reverse=True) != wanted:
        raise HeadcountError(f"a path goes from more heads to fewer; got {wanted}")
    return [(FIRST_PRICE, number) for number in wanted]


def hold_out(task: Task, test: Task | None, seed: int, allow_overlap: bool) -> tuple[Task, Task, list[str]]:
    """What trains and what proves."""
    if test is not None:
        refuse_overlap(task.keys(), test, "the data that trains", allow_overlap)
        return task, test, []
    order = np.random.default_rng(seed).permutation(len(task)).tolist()
    count = min(AT_MOST, round(HELD_OUT * len(order)))
    if not count:
        raise HeadcountError(f"{len(order)} examples are too few to hold some out; give test data of its own")
    train, test = task.subset(sorted(order[count:])), task.subset(sorted(order[:count]))
    return train, test, [f"There is no test data: {len(test)} examples were held out, {len(train)} trained."]
