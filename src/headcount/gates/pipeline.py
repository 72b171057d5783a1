"""`train_gates`: learn which units can be removed, while the rest of the model adapts (V19 section 6, CoFi).

`causal_gates`: learn what heads do in a model that stays as it is (Causal Head Gating).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headcount.engine import batches_by_length
from headcount.errors import HeadcountError
from headcount.evaluation import evaluate
from headcount.gates.gate_training import FURTHEST, Course, GateTraining, fit_causal_gates
from headcount.gates.gated import CausalGates, Gated, GateStage, roles_left
from headcount.gates.hard_concrete import GatedUnits, HardConcrete
from headcount.heads import Head
from headcount.pruning import hold_out, saved_by_unit
from headcount.runs import RunDirectory, model_signature, open_run, versions
from headcount.settings import Gating
from headcount.stats import change_bounds
from headcount.structure import anatomy, device_of
from headcount.surgery import remove, rounded, save
from headcount.tasks import Task, refuse_non_tasks
from headcount.training import Checkpointer

FIRST_PRICE = 1e-3  # where steering begins

Progress = Callable[[str, float], object]


def train_gates(
    model: Any,
    task: Task,
    test_task: Task | None = None,
    *,
    units: str | Sequence[str] = "heads",
    lam: float | Sequence[float] | None = None,
    target_heads: int | Sequence[int] | None = None,
    target_flops: float | Sequence[float] | None = None,
    kinds: Sequence[str] | None = None,
    settings: Gating | None = None,
    roles: Mapping[Head, str | Sequence[str]] | None = None,
    overlap: str = "refuse",
    run: str | Path | RunDirectory | None = None,
    on_stage: Callable[[GateStage, Any], object] | None = None,
    progress: Progress | None = None,
    precision: Any = None,
) -> Gated:
    """Put a Hard Concrete gate on every head or other unit, train, close gates for good, and really remove the units.

    >>> from headcount.tasks import Classification
    >>> from headcount.tasks.text import word_tokenizer
    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> tokenizer = word_tokenizer("good bad film book")
    >>> size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    >>> model = BertForSequenceClassification(BertConfig(**size, vocab_size=len(tokenizer)))
    >>> films, books = (
    ...     Classification([{"text": f"{word} {what}", "label": word == "good"} for word in ("good", "bad")], tokenizer)
    ...     for what in ("film", "book")
    ... )
    >>> gated = train_gates(model, films, books, target_heads=3)
    >>> gated.left, len(gated.removed)
    (3, 5)
    >>> gated = train_gates(model, films, books, units="heads,neurons", target_flops=0.5)
    >>> 0.47 < gated.stages[-1].flops_left <= 0.5
    True

    task: the training data. test_task: held-out data; without it, a tenth of `task` is held out.
    units: what gets gates: "heads", "neurons", "sublayers", or several of them. A head or neuron whose sublayer also
    has one is open if both are.
    lam: the price of an open gate (V19's lambda), for heads. target_heads: instead, how many of the heads with gates to
    keep. target_flops: instead, for any units, the share to keep of the FLOPs of all heads and neurons, on texts of the
    mean length of `task`. The price is steered to get there. Several make a path: each stage begins where the last
    one ended.
    kinds: only units of these kinds get gates. roles: of heads, one or several each, to count which survive.
    overlap: what happens to test examples that are also in the training data: "refuse", "drop" or "allow".
    run: a run directory; the same call resumes there, and ends in the same result.
    on_stage: called with every finished stage and its model. progress: called with what is being done, and its share.
    precision: a torch.dtype to round weights to before the test, as they will be saved. Your model is not changed.
    """
    refuse_non_tasks(task=task, test_task=test_task or task)
    settings = settings or Gating()
    goals = plan_stages(lam, target_heads, target_flops)
    task, test, remarks = hold_out(task, test_task, settings.seed, overlap)
    gated = GatedUnits.find(model, units, kinds, 0 if target_flops is None else max(1, round(np.mean(task.lengths))))
    refuse_contradiction(goals, gated)
    signature = {
        "model": model_signature(model), "train": task.signature(), "test": test.signature(), "lambda": lam,
        "target_heads": target_heads, "target_flops": target_flops, "units": gated.asked, "kinds": kinds,
        "settings": vars(settings), "versions": versions(),
    }  # fmt: skip
    with open_run(run, signature) as directory:
        base = evaluate(model, test).of()
        path = GatePath(model, task, gated, settings, goals, None if directory is None else directory.path / "gates")
        while not path.ended:
            try:
                path.train(progress)
            except HeadcountError as error:
                raise _stopped(error, path.training, directory) from error
            went_back = _reopen(path.training)
            smaller, removed = cut(path.training, precision)
            stage = _measure(smaller, test, base, path, removed, roles, went_back)
            if on_stage is not None:
                on_stage(stage, smaller)
            path.finish(stage)
    smaller, removed = cut(path.training, precision)
    return Gated(
        model=smaller,
        removed=tuple(removed),
        metric=test.metric,
        before=float(test.metric.of(base)),
        test_n=len(test),
        stages=tuple(path.stages),
        remarks=(*remarks, *(stage.remark for stage in path.stages if stage.remark)),
        signature=signature,
        saved=saved_by_unit(model, smaller, test),
    )


def causal_gates(
    model: Any,
    task: Task,
    *,
    lam: float = 0.01,
    seeds: int = 5,
    kinds: Sequence[str] | None = None,
    settings: Gating | None = None,
    run: str | Path | RunDirectory | None = None,
    progress: Progress | None = None,
) -> CausalGates:
    """Find heads that help, that hinder and that do not matter, by soft gates on a frozen model (arXiv:2505.13737).

    >>> from headcount.tasks.classification import toy_classifier
    >>> found = causal_gates(*toy_classifier(), seeds=2)
    >>> found.opened.shape, len(found.roles)
    ((2, 8), 8)

    lam: the price with which gates are pressed to open, and then to close. A gate resists it if the loss changes by
    more than about 4 lam between a closed and an open gate. seeds: how often everything is repeated, from other gates
    and in another order of batches. kinds: only heads of these get gates. settings: `epochs` of each of the three fits
    of a seed, `gate_lr`, `tokens` and the first `seed`. run: a run directory, which keeps every finished seed.
    progress: called with what is being done, and its share. The model is not changed.
    """
    refuse_non_tasks(task=task)
    settings = settings or Gating()
    if not lam > 0 or seeds < 1:
        raise HeadcountError(
            f"lambda {lam:g} and {seeds} seeds were given", advice="give {lam} above 0 and {seeds} from 1"
        )
    task.check(model)
    units = GatedUnits.find(model, "heads", kinds)
    signature = {
        "model": model_signature(model), "train": task.signature(), "causal": lam, "seeds": seeds, "kinds": kinds,
        "settings": vars(settings), "versions": versions(),
    }  # fmt: skip
    fits = []
    with open_run(run, signature) as directory:
        for number in range(seeds):
            seed, name = settings.seed + number, f"causal-{settings.seed + number}"

            def tell(share: float, number: int = number) -> None:
                if progress is not None:
                    progress(f"fitting gates, seed {number + 1} of {seeds}", (number + share) / seeds)

            kept = (None if directory is None else directory.load_shard(name)) or {}
            gates = kept.get("gates")
            if gates is None or gates.shape != (3, len(units.heads)):
                gates = fit_causal_gates(model, task, units, settings, seed, lam, tell).cpu().numpy()
                if directory is not None:
                    directory.save_shard(name, {"gates": gates})
            fits.append(gates)
    steps = settings.epochs * len(batches_by_length(task.lengths, settings.tokens))
    least = int(np.ceil(2 * FURTHEST / settings.gate_lr))
    needed = f"Undecided: a gate needs {least} steps to close, and each fit took {steps}. Train longer, or raise the"
    remarks = (f"{needed} learning rate of the gates.",) if steps < least else ()
    _, opened, closed = np.stack(fits, axis=1)  # (seeds, heads) each
    return CausalGates(units.heads, opened, closed, lam, task.metric, len(task), remarks, signature)


class GatePath:
    """The stages of one call: those that are finished, and the training under way, kept after each epoch.

    directory: for `gates.json` and its tensors.
    """

    def __init__(
        self,
        model: Any,
        task: Task,
        units: GatedUnits,
        settings: Gating,
        goals: Sequence[Goal],
        directory: Path | None,
    ) -> None:
        self.task, self.units, self.settings, self.goals = task, units, settings, goals
        self.learner, self.gates = copy.deepcopy(model), HardConcrete(units.count).to(device_of(model))
        self.checkpoint = Checkpointer(directory, "gates")
        self.stages: list[GateStage] = []
        self.epoch = 0  # epochs of the stage under way that are finished
        kept = self.checkpoint.read(self._parse)
        if kept is not None:
            self.stages, self.epoch, course, snapshot = kept
        self.training = self._stage(len(self.stages) - self.ended)
        if kept is not None:
            self.training.resume(self.checkpoint, course, snapshot)

    @property
    def ended(self) -> bool:
        """All stages are finished, or the last one closed every gate, so that the next could only do the same."""
        return len(self.stages) == len(self.goals) or (bool(self.stages) and self.stages[-1].went_back_to is not None)

    def train(self, progress: Progress | None) -> None:
        """The stage under way, to its last epoch."""

        def tell(share: float, loss: float) -> None:
            if progress is not None:
                opened = int((~self.gates.closed()).sum())
                done = (len(self.stages) + share) / len(self.goals)
                progress(f"training gates, {opened} of {self.units.count} open", done)

        self.training.run(self.epoch, self.keep, tell)

    def keep(self, epoch: int) -> None:
        """Keep the stage under way after an epoch."""
        if epoch < self.settings.epochs:  # after the last one, the stage is measured and kept as finished
            self.epoch = epoch
            self.training.keep(self.checkpoint, self._state())

    def finish(self, stage: GateStage) -> None:
        """Keep a finished stage, and prepare the next one, if there is one."""
        self.stages.append(stage)
        self.epoch = 0
        self.training.keep(self.checkpoint, self._state(), ended=True)
        if not self.ended:
            self.training = self._stage(len(self.stages))

    def _stage(self, number: int) -> GateTraining:
        goal, units = self.goals[number], self.units
        wanted = goal.budget(units)
        return GateTraining(self.learner, self.task, self.gates, units, self.settings, price=goal.price, wanted=wanted)

    @property
    def goal(self) -> Goal:
        """Of the stage under way."""
        return self.goals[len(self.stages)]

    def _state(self) -> dict[str, Any]:
        return {"stages": [asdict(stage) for stage in self.stages], "epoch": self.epoch}

    def _parse(self, content: dict[str, Any]) -> tuple[list[GateStage], int, Course | None, int | None]:
        stages, epoch = [GateStage.parse(one) for one in content["stages"]], int(content["epoch"])
        course = None if content["course"] is None else Course.parse(content["course"])
        snapshot = None if content["snapshot"] is None else int(content["snapshot"])
        under_way = len(stages) + (course is not None)
        if not 1 <= under_way <= len(self.goals) or not 0 <= epoch < self.settings.epochs:
            raise ValueError(f"epoch {epoch} after {len(stages)} of {len(self.goals)} stages")
        return stages, epoch, course, snapshot


def _reopen(training: GateTraining) -> int | None:
    """If every gate has closed, go back to the last step at which one was open, and say which."""
    if training.wanted is not None or not bool(training.gates.closed().all()):
        return None
    step = training.go_back()
    if not step:
        message = f"lambda {training.course.price:g} closed every gate within the first steps"
        raise HeadcountError(message, advice="try a smaller {lam}")
    return step


def cut(training: GateTraining, precision: Any = None) -> tuple[Any, list[Head]]:
    """Gates to 0 or 1: the model without the units whose gates are closed, in a precision, and which these are."""
    units = training.units
    if training.wanted is None:  # every unit has one gate, its own
        removed = [head for head, shut in zip(units.heads, training.gates.closed().tolist(), strict=True) if shut]
    else:  # exactly as much as asked for
        kept = set(units.best(training.gates, training.wanted))
        removed = [head for head in units.heads if head not in kept]
    return rounded(remove(training.model, removed).eval(), precision), removed


def _measure(
    smaller: Any,
    test: Task,
    base: np.ndarray,
    path: GatePath,
    removed: list[Head],
    roles: Mapping[Head, str | Sequence[str]] | None,
    went_back_to: int | None,
) -> GateStage:
    statistics = evaluate(smaller, test).of()
    low, high = change_bounds(base, statistics[None], test.metric)
    score, before = (float(test.metric.of(one)) for one in (statistics, base))
    training, units, goal = path.training, path.units, path.goal
    gone = set(removed)
    left = [head for head in units.heads if head not in gone]
    return GateStage(
        price=training.course.price,
        target=goal.heads,
        removed=tuple(anatomy(training.model, units.masks).written(removed)),
        left=len(left),
        of=len(units.heads),
        left_by_site={site.name: len(site.kept) for site in anatomy(smaller, units.masks).sites},
        score=score,
        change=score - before,
        low=float(low[0]),
        high=float(high[0]),
        decided=training.gates.decided(),
        open_before=float(training.gates.penalty().detach()),
        units=" and ".join(units.masks),
        flops=goal.flops,
        flops_left=None if goal.flops is None else units.cost(left),
        roles=roles_left(roles, gone),
        notes=tuple(training.course.notes),
        went_back_to=went_back_to,
    )


def _stopped(error: HeadcountError, training: GateTraining, run: RunDirectory | None) -> HeadcountError:
    """A loss that is not finite: save the last good model, and say where."""
    step = training.go_back()
    if not step or run is None:
        return error
    path = save(cut(training)[0], run.path / "last-good")
    return HeadcountError(f"{error.message}; the model of step {step} is saved in {path}", advice=error.advice)


class Goal(NamedTuple):
    """What one stage is to reach: a price, a number of heads, or a share of the FLOPs."""

    price: float = FIRST_PRICE
    heads: int | None = None
    flops: float | None = None

    def budget(self, units: GatedUnits) -> float | None:
        """What the units that stay may cost together; None if the price alone decides."""
        return self.heads if self.flops is None else self.flops - units.fixed


def plan_stages(lam: Any, heads: Any, flops: Any) -> list[Goal]:
    """The goal of each stage.

    >>> plan_stages([0.01, 0.03], None, None)
    [Goal(price=0.01, heads=None, flops=None), Goal(price=0.03, heads=None, flops=None)]
    """
    given = [
        name for name, value in (("lam", lam), ("target_heads", heads), ("target_flops", flops)) if value is not None
    ]
    if len(given) != 1:
        raise HeadcountError(
            f"gates need one goal: a price of open gates, a number of heads or a share of the FLOPs; got {len(given)}",
            advice="pass one of {lam}, {target_heads} and {target_flops}",
        )
    value = next(value for value in (lam, heads, flops) if value is not None)
    numbers = list(value) if isinstance(value, Sequence) else [value]
    said = ", ".join(map(str, numbers)) or "nothing"
    if lam is not None:
        prices = [float(price) for price in numbers]
        if not prices or any(not price > 0 for price in prices):
            advice = "give {lam} a number above 0, or several"
            raise HeadcountError(f"an open gate cannot have the price {said}", advice=advice)
        return [Goal(price) for price in prices]
    if not numbers or sorted(numbers, reverse=True) != numbers:
        what, name = ("heads", "target_heads") if flops is None else ("FLOPs", "target_flops")
        advice = f"sort {{{name}}}, the largest first"
        raise HeadcountError(f"a path leads from more {what} to fewer, not along {said}", advice=advice)
    if flops is None:
        return [Goal(heads=int(number)) for number in numbers]
    if any(not 0 < share < 1 for share in numbers):
        advice = "give {target_flops} between 0 and 1, as 0.5"
        raise HeadcountError(f"{said} is not a share of the FLOPs to keep", advice=advice)
    return [Goal(flops=float(share)) for share in numbers]


def refuse_contradiction(goals: Sequence[Goal], units: GatedUnits) -> None:
    """Refuse goals that these units cannot reach, or do not count in."""
    if units.asked != ("heads",) and goals[0].flops is None:
        raise HeadcountError(
            f"gates on {', '.join(units.asked)} are trained to a share of FLOPs, not to a price or a number of heads",
            advice='pass {target_flops} instead, or choose "heads" as {units}',
        )
    wanted = [goal.heads for goal in goals if goal.heads is not None]
    total = len(units.heads)
    if any(not 1 <= number < total for number in wanted):
        raise HeadcountError(f"of {total} heads with gates, 1 to {total - 1} can be kept; got {wanted}")
    for goal in goals:
        if goal.flops is not None and goal.flops - units.fixed < units.cheapest:
            least = units.fixed + units.cheapest
            raise HeadcountError(
                f"{goal.flops:.1%} of the FLOPs cannot be reached by gates on {', '.join(units.asked)}: "
                f"at least {least:.1%} remain",
                advice="choose a larger share as {target_flops}, or more {units} and {kinds}",
            )
