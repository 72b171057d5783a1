"""The one place where an importance method is made known: a name, a function, and how its order is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headcount.errors import HeadcountError, unknown
from headcount.importance.confidence import confidence
from headcount.importance.gradient import fisher, gradient
from headcount.importance.oracle import oracle
from headcount.importance.random_order import random_order
from headcount.importance.relevance import relevance


@dataclass(frozen=True)
class Method:
    """An importance method.

    values: called with the model, the task and the method's own keyword options (and `progress`, if it takes that);
        gives (rows, heads) in the order of `anatomy(model).heads`, higher for more important; a row is an example,
        or whatever the score is a mean over.
    normalized: the order is taken from scores divided by their l2 norm in each layer of each kind, as M19 does.
    about: one line for the help text.
    reads_data: False if the scores do not depend on the data at all.
    """

    values: Callable[..., np.ndarray]
    normalized: bool
    about: str
    reads_data: bool = True


METHODS = {
    "gradient": Method(gradient, True, "M19 eq. 2: the mean absolute gradient of an example's loss"),
    "fisher": Method(fisher, False, "the mean squared gradient of an example's loss"),
    "oracle": Method(oracle, False, "how much worse the metric is with the head off (M19's single ablation)"),
    "confidence": Method(confidence, False, "V19: the mean largest attention weight, end of sentence excluded"),
    "relevance": Method(relevance, False, "V19: the share of its layer's relevance for the top-1 logit (LRP)"),
    "random": Method(random_order, False, "no information at all, for comparison", reads_data=False),
}


def find_method(name: str) -> Method:
    """The method of that name, or what there is instead.

    >>> find_method("fisher").normalized
    False
    """
    if name not in METHODS:
        raise HeadcountError(unknown("importance method", name, METHODS))
    return METHODS[name]
