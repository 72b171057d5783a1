"""`importance`: score every head, neuron or sublayer by one of the `METHODS`, and keep what each score is the mean of.

The two methods that need no pass of their own stand here: `oracle`, M19's single ablation, and `random`. To add a
method, write its file and add an entry to `METHODS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from headcount.engine import Progress
from headcount.errors import BadData, HeadcountError, counted, unknown
from headcount.evaluation import Outcomes, evaluate
from headcount.runs import RunDirectory, model_signature, open_run, versions
from headcount.scoring.confidence import confidence
from headcount.scoring.gradient import Moments, fisher, gradient, unit_moments
from headcount.scoring.per_example import PassOptions, units_to_score
from headcount.scoring.relevance import relevance
from headcount.scoring.scores import Scores, is_neuron, site_of
from headcount.structure import anatomy
from headcount.tasks import Task, refuse_non_tasks

GROUP = 64  # neurons that the oracle turns off together


def importance(
    model: nn.Module,
    task: Task,
    method: str = "gradient",
    *,
    units: str | Iterable[str] = "heads",
    normalize: bool | None = None,
    run: str | Path | RunDirectory | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Scores:
    """Score every head, or every neuron or sublayer: the higher, the more important.

    >>> from headcount.tasks.classification import toy_classifier
    >>> scores = importance(*toy_classifier())
    >>> scores
    <gradient scores of 8 heads, mean of 2 rows>
    >>> len(scores.order()), scores["encoder.1.3"] > 0
    (8, True)
    >>> importance(*toy_classifier(), "fisher", units="neurons")
    <fisher scores of 6144 neurons, 1 row>

    task: on other data than the pruned model is later tested on; M19 uses training data.
    method: gradient (M19 eq. 2), fisher, oracle, relevance or confidence (V19), or random.
    units: "heads", "neurons", "sublayers" or several, as for `anatomy`; relevance and confidence are of heads only.
        With neurons, of which there are many thousands, one row of scores is kept instead of a row per example.
    normalize: order units by scores divided by their l2 norm in each layer, as M19 does, or by raw scores; by default
        as the method says: `gradient` of heads or neurons is normalised, the others are not.
    options: the method's own. gradient: per="example", "token" or "batch"; oracle: group, the neurons that are ablated
        together; relevance: steps of an example; confidence: exclude="end", "special" or "none"; random: seed.
    run: a run directory, which keeps finished shards and resumes from them.
    progress: called with the share done, from 0 to 1.
    """
    refuse_non_tasks(task=task)
    chosen = find_method(method)
    takes = _takes(chosen)
    for name in options:
        if name not in takes:
            raise HeadcountError(unknown(f"option of {method}", name, takes - {"progress", "run", "units"}))
    asked = anatomy(model, units).asked
    if asked != ("heads",) and "units" not in takes:
        others = " and ".join(one for one in asked if one != "heads")
        able = ", ".join(name for name, one in METHODS.items() if "units" in _takes(one))
        raise HeadcountError(
            f"{method} scores attention heads only, not {others}",
            advice=f"choose {{units}} heads, or {{method}} from {able}",
        )
    found = units_to_score(model, asked)
    refuse_one_class(task)
    signature = {
        "model": model_signature(model),
        "task": task.signature(),
        "method": method,
        "units": list(asked),
        "options": options,
        "versions": versions(),
    }
    with open_run(run, signature) as directory:
        given = {"progress": progress, "run": directory, "units": asked}
        extra = {name: value for name, value in given.items() if name in takes}
        values = chosen.values(model, task, **options, **extra)
    keys = tuple(task.keys()) if chosen.reads_data else ()
    # Shares of sites of different kinds are on different scales; raw gradients of all units are on one.
    if normalize is None:
        normalize = chosen.normalized and asked in (("heads",), ("neurons",))
    return Scores(found, values, method, normalize, signature, keys)


def _takes(method: Method) -> set[str]:
    """The names of a method's keyword options; `**how` stands for those of a pass over the data."""
    parameters = inspect.signature(method.values).parameters.items()
    named = {name for name, one in parameters if one.kind is one.KEYWORD_ONLY}
    return named | set(PassOptions.__annotations__) if any(p.kind is p.VAR_KEYWORD for _, p in parameters) else named


def refuse_one_class(task: Task) -> None:
    """Refuse examples of a single class: they do not show what tells the classes apart."""
    labels = getattr(task, "labels", None)
    if task.signature().get("task") == "classification" and labels is not None and len(set(labels)) < 2:
        raise BadData(
            f"of {counted(len(labels), 'example')}, each has the label {labels[0]}; "
            "scores need examples of more than one class"
        )


def oracle(
    model: nn.Module,
    task: Task,
    *,
    units: str | Iterable[str] = "heads",
    group: int = GROUP,
    run: RunDirectory | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """How much worse the metric is with each unit off, divided among the examples: (examples, units).

    This is one sweep, kept in the run directory if there is one; the rest is arithmetic on its outcomes. Neurons are
    turned off in groups of similar importance, and each gets an equal part of its group's drop: (1, units) then.

    group: how many neurons of a site are turned off together; the last group of a site may be smaller.
    """
    if type(group) is not int or group < 1:
        raise HeadcountError(f"group is {group!r}", advice="give {group} as a whole number of neurons, at least 1")
    found = anatomy(model, units)
    groups = [[place] for place, unit in enumerate(found.units) if not is_neuron(unit)]
    if "neurons" in found.asked:
        groups += neuron_groups(unit_moments(model, task, found.asked, run=run), group)
    masks = [(), *([found.units[place] for place in members] for members in groups)]
    rows = drops(evaluate(model, task, masks, run=run, name="oracle", progress=progress))  # (N, groups)
    if "neurons" not in found.asked:
        return rows
    values = np.zeros((1, len(found.units)))
    for members, drop in zip(groups, rows.mean(0), strict=True):
        values[0, members] = drop / len(members)
    return values


def neuron_groups(moments: Moments, size: int) -> list[list[int]]:
    """The places of neurons in groups of this size, each of one site and of neighbours by their Fisher information."""
    by_site: dict[str, list[int]] = {}
    for place, unit in enumerate(moments.units):
        if is_neuron(unit):
            by_site.setdefault(site_of(unit), []).append(place)
    ranked = [sorted(places, key=moments.squares.__getitem__) for places in by_site.values()]
    return [places[first : first + size] for places in ranked for first in range(0, len(places), size)]


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
    whole = metric.of(values)  # (M,)
    drop = sign * (whole[0] - whole[1:])  # (H,)
    if n == 1:
        return drop[None]
    without = metric.without_each(values)  # (M, N), each example left out in turn
    pseudo = n * drop[:, None] - (n - 1) * sign * (without[0] - without[1:])  # (H, N)
    return (pseudo - pseudo.mean(1, keepdims=True) + drop[:, None]).T


def random_order(
    model: nn.Module, task: Any = None, *, units: str | Iterable[str] = "heads", seed: int = 0
) -> np.ndarray:
    """A uniform random number per unit, (1, units), the same for the same seed.

    >>> from transformers import BertConfig, BertModel
    >>> model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4))
    >>> random_order(model, seed=1).shape
    (1, 8)
    """
    return np.random.default_rng(seed).random((1, len(anatomy(model, units).units)))


@dataclass(frozen=True)
class Method:
    """An importance method.

    values: called with the model, the task and the method's keyword options, with `run`, `progress` and `units` if it
        takes them; a method that does not take `units` scores heads. Returns (rows, units) in the order of
        `anatomy(model, units).units`, higher for more important; a row is an example, or whatever the score is the mean
        over.
    normalized: the order is that of the scores divided by their l2 norm in each layer of each kind, as in M19.
    about: one line for the help text.
    reads_data: False if the scores do not depend on the data.
    """

    values: Callable[..., np.ndarray]
    normalized: bool
    about: str
    reads_data: bool = True


METHODS = {
    "gradient": Method(gradient, True, "M19 eq. 2: the mean absolute gradient of an example's loss"),
    "fisher": Method(fisher, False, "the mean squared gradient of an example's loss"),
    "oracle": Method(oracle, False, "how much worse the metric is with the unit off (M19's single ablation)"),
    "confidence": Method(confidence, False, "V19: the mean largest attention weight, end of sentence excluded"),
    "relevance": Method(relevance, False, "V19: the share of its layer's relevance for the top-1 logit (LRP)"),
    "random": Method(random_order, False, "random numbers, for comparison", reads_data=False),
}


def find_method(name: str) -> Method:
    """The method of that name; an unknown name is refused, with the known ones.

    >>> find_method("fisher").normalized
    False
    """
    if name not in METHODS:
        raise HeadcountError(unknown("importance method", name, METHODS))
    return METHODS[name]
