"""`train_gates`: learn which heads can be removed, while the rest of the model adapts (V19 section 6)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headcount.errors import HeadcountError
from headcount.evaluation import evaluate
from headcount.gates.gate_training import Course, GateTraining, Gating
from headcount.gates.gated import Gated, GateStage, roles_left
from headcount.gates.hard_concrete import HardConcrete
from headcount.heads import Head
from headcount.pruning import hold_out, refuse_headless
from headcount.runs import RunDirectory, model_signature, open_run, versions
from headcount.stats import paired_bootstrap
from headcount.structure import anatomy, device_of, initialize_anew
from headcount.surgery import remove, save
from headcount.tasks import Task
from headcount.training import Checkpointer

FIRST_PRICE = 1e-3  # where steering begins

Progress = Callable[[str, float], object]


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
    overlap: str = "refuse",
    run: str | Path | RunDirectory | None = None,
    on_stage: Callable[[GateStage, Any], object] | None = None,
    progress: Progress | None = None,
) -> Gated:
    """Put a Hard Concrete gate on every head, train, close gates for good, and really remove their heads.

    >>> from headcount.tasks import Classification
    >>> from headcount.tasks.toy import word_tokenizer
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

    task: the training data. test_task: held-out data; without it, a tenth of `task` is held out.
    lam: the price of an open gate (V19's lambda). target_heads: instead, how many of the heads with gates to keep;
    the price is steered to get there. Several of either make a path: each stage begins where the last one ended.
    kinds: only heads of these kinds get gates. roles: of heads, to count which survive.
    overlap: what happens to test examples that are also in the training data: "refuse", "drop" or "allow".
    run: a run directory; the same call resumes there, and ends in the same result.
    on_stage: called with every finished stage and its model. progress: called with what is being done, and its share.
    The model that you pass is not changed.
    """
    refuse_headless(model)
    settings = settings or Gating()
    heads = anatomy(model).heads_of(kinds)
    asked = plan_stages(lam, target_heads, len(heads))
    task, test, remarks = hold_out(task, test_task, settings.seed, overlap)
    signature = {
        "model": model_signature(model), "train": task.signature(), "test": test.signature(), "lambda": lam,
        "target_heads": target_heads, "kinds": kinds, "settings": vars(settings), "versions": versions(),
    }  # fmt: skip
    with open_run(run, signature) as directory:
        base = evaluate(model, test).of()
        path = GatePath(model, task, heads, settings, asked, None if directory is None else directory.path / "gates")
        while not path.ended:
            try:
                path.train(progress)
            except HeadcountError as error:
                raise _stopped(error, path.training, heads, directory) from error
            went_back = _reopen(path.training)
            smaller, removed = cut(path.training, heads)
            stage = _measure(smaller, test, base, path.training, heads, removed, roles, went_back)
            if on_stage is not None:
                on_stage(stage, smaller)
            path.finish(stage)
    smaller, removed = cut(path.training, heads)
    metric = test.metric
    return Gated(
        model=smaller,
        removed=tuple(removed),
        metric=metric,
        before=float(metric.of_sums(base.sum(0))),
        test_n=len(test),
        stages=tuple(path.stages),
        remarks=(*remarks, *(stage.remark for stage in path.stages if stage.remark)),
        signature=signature,
    )


class GatePath:
    """The stages of one call: those that are finished, and the training under way, kept after each epoch.

    asked: (price, wanted number of open gates) of each stage. directory: for `gates.json` and its tensors.
    """

    def __init__(
        self,
        model: Any,
        task: Task,
        heads: Sequence[Head],
        settings: Gating,
        asked: Sequence[tuple[float, int | None]],
        directory: Path | None,
    ) -> None:
        self.task, self.heads, self.settings, self.asked = task, heads, settings, asked
        self.learner, self.gates = copy.deepcopy(model), HardConcrete(len(heads)).to(device_of(model))
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
        return len(self.stages) == len(self.asked) or (bool(self.stages) and self.stages[-1].went_back_to is not None)

    def train(self, progress: Progress | None) -> None:
        """The stage under way, to its last epoch."""

        def tell(share: float, loss: float) -> None:
            if progress is not None:
                opened = int((~self.gates.closed()).sum())
                done = (len(self.stages) + share) / len(self.asked)
                progress(f"training gates, {opened} of {len(self.heads)} open", done)

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
        price, wanted = self.asked[number]
        return GateTraining(self.learner, self.task, self.gates, self.heads, self.settings, price=price, wanted=wanted)

    def _state(self) -> dict[str, Any]:
        return {"stages": [asdict(stage) for stage in self.stages], "epoch": self.epoch}

    def _parse(self, content: dict[str, Any]) -> tuple[list[GateStage], int, Course | None, int | None]:
        stages, epoch = [GateStage.parse(one) for one in content["stages"]], int(content["epoch"])
        course = None if content["course"] is None else Course.parse(content["course"])
        snapshot = None if content["snapshot"] is None else int(content["snapshot"])
        under_way = len(stages) + (course is not None)
        if not 1 <= under_way <= len(self.asked) or not 0 <= epoch < self.settings.epochs:
            raise ValueError(f"epoch {epoch} after {len(stages)} of {len(self.asked)} stages")
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


def cut(training: GateTraining, heads: Sequence[Head]) -> tuple[Any, list[Head]]:
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
) -> GateStage:
    statistics = evaluate(smaller, test).of()
    tested = paired_bootstrap(base, statistics[None], test.metric.of_sums, resamples=2000)
    return GateStage(
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


def _stopped(
    error: HeadcountError, training: GateTraining, heads: Sequence[Head], run: RunDirectory | None
) -> HeadcountError:
    """A loss that is not finite: save the last good model, and say where."""
    step = training.go_back()
    if not step or run is None:
        return error
    path = save(cut(training, heads)[0], run.path / "last-good")
    return HeadcountError(f"{error.message}; the model of step {step} is saved in {path}", advice=error.advice)


def plan_stages(lam: Any, target: Any, total: int) -> list[tuple[float, int | None]]:
    """(price, wanted number of open gates) of each stage.

    >>> plan_stages([0.01, 0.03], None, 8)
    [(0.01, None), (0.03, None)]
    """
    if (lam is None) == (target is None):
        given = "neither" if lam is None else "both"
        raise HeadcountError(
            f"either the price of an open gate or the number of heads to keep is needed; {given} was given",
            advice="pass {lam} or {target_heads}",
        )
    if lam is not None:
        prices = [float(price) for price in (lam if isinstance(lam, Sequence) else [lam])]
        if not prices or any(not price > 0 for price in prices):
            raise HeadcountError(f"lambda, the price of an open gate, must be above 0; got {prices}")
        return [(price, None) for price in prices]
    wanted = [int(number) for number in (target if isinstance(target, Sequence) else [target])]
    if not wanted or any(not 1 <= number < total for number in wanted):
        raise HeadcountError(f"of {total} heads with gates, 1 to {total - 1} can be kept; got {wanted}")
    if sorted(wanted, reverse=True) != wanted:
        raise HeadcountError(f"a path leads from more heads to fewer; got {wanted}")
    return [(FIRST_PRICE, number) for number in wanted]


def fresh_copy(model: Any, seed: int = 0) -> Any:
    """A model of the same layout, with the same heads removed, and newly initialised weights.

    >>> from transformers import BertConfig, BertModel
    >>> small = BertModel(BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8))
    >>> fresh = fresh_copy(small)
    >>> bool((fresh.embeddings.word_embeddings.weight == small.embeddings.word_embeddings.weight).all())
    False
    """
    if not hasattr(model, "init_weights"):
        raise HeadcountError(f"{type(model).__name__} is not a transformers model: it cannot initialise its weights")
    fresh = copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        initialize_anew(fresh)
    return fresh
