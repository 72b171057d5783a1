"""`train_gates`: learn which heads can go, while the rest of the model adapts (V19 section 6)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headcount.errors import HeadcountError
from headcount.evaluation import evaluate
from headcount.gates.gate_training import GateTraining, Gating
from headcount.gates.gated import Gated, Stage, roles_left
from headcount.gates.hard_concrete import HardConcrete
from headcount.gates.state import GateState
from headcount.heads import Head
from headcount.pruning import refuse_headless, resolve_overlap
from headcount.runs import RunDirectory, model_signature, open_run, versions
from headcount.stats import paired_bootstrap
from headcount.structure import anatomy, device_of, initialize_anew
from headcount.surgery import remove, save
from headcount.tasks import Task

HELD_OUT, AT_MOST = 0.1, 1000  # of the data, if there is no test data
FIRST_PRICE = 1e-3  # where steering begins


Progress = Callable[[str, float], None]


def train_gates(
    model: Any,
    task: Task,
    test_task: Task | None = None,
    *,
    lam: float | Sequence[float] | None = None,
    target_heads: int | Sequence[int] | None = None,
    kinds: Sequence[str] | None = None,
    settings: Gating | None = None,
    roles: Mapping[Head, str] | None = None,
    allow_overlap: bool = False,
    run: str | Path | RunDirectory | None = None,
    on_stage: Callable[[Stage, Any], object] | None = None,
    progress: Progress | None = None,
) -> Gated:
    """Put a Hard Concrete gate on every head, train, close gates for good, and really remove their heads.

    task: what is trained on. test_task: what proves it; without one, a tenth of `task` is held out.
    lam: the price of an open gate (V19's lambda). target_heads: instead, how many of the heads with gates shall stay;
    the price is steered to get there. Several of either make a path: each stage begins where the last one ended.
    kinds: only heads of these kinds get gates. roles: of heads, to tell which survive.
    run: a run directory; the same call goes on there where it was interrupted, to the same result.
    on_stage: called with every finished stage and its model. The model itself is left as it is.
    """
    refuse_headless(model)
    settings = settings or Gating()
    heads = anatomy(model).heads_of(kinds)
    asked = plan_stages(lam, target_heads, len(heads))
    task, test, remarks = hold_out(task, test_task, settings.seed, allow_overlap)
    signature = {
        "model": model_signature(model), "train": task.signature(), "test": test.signature(), "lambda": lam,
        "target_heads": target_heads, "kinds": kinds, "settings": vars(settings), "versions": versions(),
    }  # fmt: skip
    with open_run(run, signature) as directory:
        base = evaluate(model, test).of()
        learner, gates = copy.deepcopy(model), HardConcrete(len(heads)).to(device_of(model))
        state = GateState(None if directory is None else directory.path / "gates")
        smaller, removed = model, list[Head]()
        for number, (price, wanted) in enumerate(asked):
            training = GateTraining(learner, task, gates, heads, settings, price=price, wanted=wanted)
            done = number < len(state.stages)  # before an interruption
            if not done:
                try:
                    _train(training, state, settings, _part(progress, number, len(asked), training))
                except HeadcountError as error:
                    raise _stopped(error, training, heads, directory) from error
                went_back = _reopen(training)
                smaller, removed = _cut(training, heads)
                stage = _measure(smaller, test, base, training, heads, removed, roles, went_back)
                state.keep(training, settings.epochs, stage)
                if on_stage is not None:
                    on_stage(stage, smaller)
            if number + 1 == len(asked) or state.stages[number].went_back_to is not None:
                if done:
                    state.resume(training)
                    smaller, removed = _cut(training, heads)
                break
    metric = test.metric
    return Gated(
        model=smaller,
        removed=tuple(removed),
        metric=metric,
        before=float(metric.of_sums(base.sum(0))),
        test_n=len(test),
        stages=tuple(state.stages),
        remarks=(*remarks, *(stage.remark for stage in state.stages if stage.remark)),
        signature=signature,
    )


def _train(training: GateTraining, state: GateState, settings: Gating, progress: Callable[[int, float], None]) -> None:
    for epoch in range(state.resume(training), settings.epochs):
        training.epoch(epoch, lambda share, epoch=epoch: progress(settings.epochs, epoch + share))
        if epoch + 1 < settings.epochs:
            state.keep(training, epoch + 1)


def _reopen(training: GateTraining) -> int | None:
    """If every gate has closed, go back to the last step at which one had not, and say which."""
    if training.wanted is not None or not bool(training.gates.closed().all()):
        return None
    step = training.go_back()
    if not step:
        price = training.course.price
        raise HeadcountError(f"lambda {price:g} closed every gate within the first steps; try a smaller one")
    return step


def _cut(training: GateTraining, heads: Sequence[Head]) -> tuple[Any, list[Head]]:
    """Gates to 0 or 1: the model without the heads whose gates are closed, and which these are."""
    if training.wanted is None:
        closed = training.gates.closed().tolist()
    else:  # exactly as many as asked for
        order = training.gates.log_alpha.detach().argsort(descending=True, stable=True).tolist()
        open_ones = set(order[: training.wanted])
        closed = [place not in open_ones for place in range(len(heads))]
    removed = [head for head, shut in zip(heads, closed, strict=True) if shut]
    return remove(training.model, removed).eval(), removed


def _measure(
    smaller: Any,
    test: Task,
    base: np.ndarray,
    training: GateTraining,
    heads: Sequence[Head],
    removed: list[Head],
    roles: Mapping[Head, str] | None,
    went_back_to: int | None,
) -> Stage:
    statistics = evaluate(smaller, test).of()
    tested = paired_bootstrap(base, statistics[None], test.metric.of_sums, resamples=2000)
    return Stage(
        price=training.course.price,
        target=training.wanted,
        removed=tuple(str(head) for head in removed),
        left=len(heads) - len(removed),
        left_by_site={site.name: len(site.kept) for site in anatomy(smaller).sites},
        score=float(test.metric.of_sums(statistics.sum(0))),
        change=float(tested.change[0]),
        low=float(tested.low[0]),
        high=float(tested.high[0]),
        decided=training.gates.decided(),
        roles=roles_left(roles, set(removed)),
        notes=tuple(training.course.notes),
        went_back_to=went_back_to,
    )


def _stopped(error: HeadcountError, training: GateTraining, heads: Sequence[Head], run: RunDirectory | None) -> Any:
    """A loss that is not finite: keep the last good model, and say where."""
    step = training.go_back()
    if not step or run is None:
        return error
    path = save(_cut(training, heads)[0], run.path / "last-good")
    return HeadcountError(f"{error}; the model of step {step} is kept in {path}")


def _part(progress: Progress | None, number: int, of: int, training: GateTraining) -> Callable[[int, float], None]:
    def tell(epochs: int, done: float) -> None:
        if progress is not None:
            closed = training.gates.closed()
            progress(f"training gates, {int((~closed).sum())} of {len(closed)} open", (number + done / epochs) / of)

    return tell


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
        test, remarks = resolve_overlap(task.keys(), test, "the training data", "allow" if allow_overlap else "refuse")
        return task, test, remarks
    order = np.random.default_rng(seed).permutation(len(task)).tolist()
    count = min(AT_MOST, round(HELD_OUT * len(order)))
    if not count:
        raise HeadcountError(f"{len(order)} examples are too few to hold some out; give test data of its own")
    train, test = task.subset(sorted(order[count:])), task.subset(sorted(order[:count]))
    return train, test, [f"There is no test data: {len(test)} examples were held out, {len(train)} trained."]


def fresh_copy(model: Any, seed: int = 0) -> Any:
    """A model of the same layout, its heads gone as they are, with weights as at the beginning of a training.

    >>> from transformers import BertConfig, BertModel
    >>> small = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8))
    >>> fresh = fresh_copy(small)
    >>> bool((fresh.embeddings.word_embeddings.weight == small.embeddings.word_embeddings.weight).all())
    False
    """
    if not hasattr(model, "init_weights"):
        raise HeadcountError(f"{type(model).__name__} cannot say how its weights begin: it is no transformers model")
    fresh = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        initialize_anew(fresh)
    return fresh
