"""Gate training: weights and gates together, at a fixed or a steered price of what is open; or, for causal gating,
gates alone, on weights that stay as they are.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headcount.engine import batches_by_length
from headcount.gates.hard_concrete import GatedUnits, HardConcrete
from headcount.intervene import masked
from headcount.settings import Gating
from headcount.structure import anatomy
from headcount.tasks import Batch, Task
from headcount.training import Checkpointer, Training, refuse_misfit, set_weights, weights_of

RAMP = 0.6  # what is to be open falls from what is to what is wanted during this share of the steps
STEERING = 0.5  # how fast the price follows: e-fold in two steps if everything is open and nothing should be
FOLLOWING = 5.0  # the same where gates are moved after each step, so that the difference is that of one step
CHEAPEST, DEAREST = 1e-6, 1e3
NOTES, LOOKS = 50, 20  # how often a stage takes notes, and a snapshot if a gate is open
FURTHEST = 4.0  # log-odds at which causal gates are clipped: 0.018 and 0.982
FIRST, JITTER = 2.0, 0.5  # their log-odds at the start, and how much seeds differ


@dataclass
class Course:
    """How a stage has gone so far.

    price: of an open gate. start: the expected cost of what was open when the stage began.
    notes: [{step, loss, open, lambda}]. recent: losses since the last note.
    """

    price: float
    start: float
    notes: list[dict[str, float]] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)

    @classmethod
    def parse(cls, content: dict[str, Any]) -> Course:
        """As `asdict` writes it; what is not a number raises an error here, not where it is printed."""
        recent = [float(loss) for loss in content["recent"]]
        return cls(float(content["price"]), float(content["start"]), parse_notes(content["notes"]), recent)


@dataclass
class GateSnapshot:
    """Weights and gates at a step at which at least one gate was open."""

    step: int
    weights: dict[str, Tensor]
    log_alpha: Tensor


class GateTraining(Training):
    """`L_xent + lambda L_C` (V19 section 6.1), one sample of the gates per batch.

    `L_xent` is the mean over the examples of a batch of the task's loss, which for text is itself a mean over tokens.

    units: those that have gates; `L_C` is their expected cost. price: lambda. wanted: instead, what the units that stay
    may cost together; lambda is then steered, as a Lagrange multiplier: it grows while more is open than there should
    be by then, and falls while less is. A price alone overshoots a number of heads, or comes too late in a short
    training: gates move by at most their learning rate in a step, whatever the price. So after each step, gates on
    heads are moved along the penalty to exactly as many, in expectation, as should be open by then.
    """

    def __init__(
        self,
        model: Any,
        task: Task,
        gates: HardConcrete,
        units: GatedUnits,
        settings: Gating,
        *,
        price: float,
        wanted: float | None = None,
    ) -> None:
        self.weights = trained_weights(model, units, settings.weights)
        learning = {id(parameter) for parameter in self.weights}
        self.frozen = [p for p in model.parameters() if p.requires_grad and id(p) not in learning]
        groups = [
            {"params": self.weights, "lr": settings.lr},
            {"params": list(gates.parameters()), "lr": settings.gate_lr, "weight_decay": 0.0, "steady": True},
        ]
        batches = batches_by_length(task.lengths, settings.tokens)
        super().__init__(
            model, task, groups, batches=batches, epochs=settings.epochs, seed=settings.seed, what="the gates"
        )
        self.gates, self.units, self.wanted, self.course = gates, units, wanted, Course(price, start=0.0)
        self.course.start = self._expected()
        self.total = units.total
        # As if each gate cost 1 on average, so that one price means the same whatever cost is counted in.
        self.scale = units.count / self.total
        self.snapshot: GateSnapshot | None = None

    def epoch(self, number: int, progress: Any = None) -> None:
        for parameter in self.frozen:
            parameter.requires_grad_(False)
        try:
            super().epoch(number, progress)
        finally:
            for parameter in self.frozen:
                parameter.requires_grad_(True)

    def loss(self, step: int, batch: Batch) -> Tensor:
        noise = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        xi = self.units.xi(self.gates.sample(noise))  # (all units,)
        with masked(self.model, xi=xi, units=self.units.masks):
            loss = super().loss(step, batch)
        self.course.recent.append(float(loss.detach()))
        return loss + self.course.price * self.scale * self.units.expected(self.gates)

    def after_step(self, step: int) -> None:
        if self.wanted is not None:
            start, expected = max(self.wanted, self.course.start), self._expected()
            by_now = start - (start - self.wanted) * min(1.0, (step + 1) / (RAMP * self.steps))
            speed = FOLLOWING if self.units.are_counted else STEERING
            grown = self.course.price * math.exp(speed * (expected - by_now) / self.total)
            self.course.price = min(DEAREST, max(CHEAPEST, grown))
            if self.units.are_counted:
                self.gates.move_to(by_now)
        if (step + 1) % max(1, self.steps // NOTES) == 0 or step + 1 == self.steps:
            mean = sum(self.course.recent) / max(1, len(self.course.recent))
            opened = float(self.gates.penalty().detach())
            self.course.notes.append({"step": step + 1, "loss": mean, "open": opened, "lambda": self.course.price})
            self.course.recent = []
        ends_epoch = (step + 1) % len(self.batches) == 0
        if (ends_epoch or (step + 1) % max(1, self.steps // LOOKS) == 0) and not bool(self.gates.closed().all()):
            self.snapshot = GateSnapshot(step + 1, weights_of(self.model), self.gates.log_alpha.detach().clone())

    def go_back(self) -> int:
        """Return to the last snapshot; says at which step it was taken, 0 if there is none."""
        if self.snapshot is None:
            return 0
        set_weights(self.model, self.snapshot.weights)
        with torch.no_grad():
            self.gates.log_alpha.copy_(self.snapshot.log_alpha)
        return self.snapshot.step

    def keep(self, checkpoint: Checkpointer, state: dict[str, Any], *, ended: bool = False) -> None:
        """Keep everything that the next epoch depends on; of a stage that has ended, what the next stage begins with.

        state: what the caller keeps beside it.
        """
        tensors: dict[str, Tensor] = {"gates": self.gates.log_alpha}
        if ended:
            checkpoint.keep({**state, "course": None, "snapshot": None}, self.model, tensors=tensors)
            return
        copies = {}
        if self.snapshot is not None:
            tensors["snapshot"], copies["snapshot"] = self.snapshot.log_alpha, self.snapshot.weights
        state = {**state, "course": asdict(self.course), "snapshot": self.snapshot and self.snapshot.step}
        checkpoint.keep(state, self.model, self.optimizer, tensors=tensors, copies=copies)

    def resume(self, checkpoint: Checkpointer, course: Course | None, snapshot: int | None) -> None:
        """Begin where a stage ended; with its course so far, in the middle of it.

        snapshot: the step at which the snapshot that was kept had been taken.
        """
        restored = checkpoint.restore(self.model, None if course is None else self.optimizer)
        with torch.no_grad():
            self.gates.log_alpha.copy_(self._fitting(restored.tensors, "gates"))
        if course is None:
            self.course.start = self._expected()
            return
        self.course = course
        if snapshot is not None:
            weights = restored.copies.get("snapshot") or weights_of(self.model)
            self.snapshot = GateSnapshot(snapshot, weights, self._fitting(restored.tensors, "snapshot"))

    def _expected(self) -> float:
        """What the open units are expected to cost together."""
        return float(self.units.expected(self.gates).detach())

    def _fitting(self, tensors: dict[str, Tensor], name: str) -> Tensor:
        refuse_misfit(name, tensors.get(name), (self.gates.log_alpha.shape,))
        return tensors[name]


def parse_notes(notes: Any) -> list[dict[str, float]]:
    """Notes as JSON holds them."""
    return [{str(key): float(value) for key, value in note.items()} for note in notes]


def trained_weights(model: nn.Module, units: GatedUnits, which: str | None) -> list[nn.Parameter]:
    """The parameters that are trained with the gates of these units; fixed ones, such as sinusoids, stay fixed."""
    which = which or ("all" if len(units.heads) == units.of else "gated")
    if which == "none":
        return []
    if which == "all":
        return [parameter for parameter in model.parameters() if parameter.requires_grad]
    names = {head.site for head in units.heads}
    blocks = {id(site.block): site.block for site in anatomy(model, units.masks).sites if site.name in names}
    unique = {id(parameter): parameter for block in blocks.values() for parameter in block.parameters()}
    return [parameter for parameter in unique.values() if parameter.requires_grad]


class CausalTraining(Training):
    """Soft gates G on the heads of a frozen model (Causal Head Gating, Nam et al. 2025, arXiv:2505.13737).

        L(G) = -log P(y | x; G) - lambda sum_h log(G_h / (1 - G_h)),    log-odds clipped at +-4

    The first term is the mean over the examples of a batch of the task's loss. price: lambda; above 0 it presses gates
    to open, below 0 to close. log_odds: (heads,), changed in place.
    """

    def __init__(
        self, model: Any, task: Task, log_odds: Tensor, units: GatedUnits, settings: Gating, seed: int, price: float
    ) -> None:
        groups = [{"params": [log_odds], "lr": settings.gate_lr, "weight_decay": 0.0, "steady": True}]
        batches = batches_by_length(task.lengths, settings.tokens)
        super().__init__(model, task, groups, batches=batches, epochs=settings.epochs, seed=seed, what="the gates")
        self.log_odds, self.units, self.price = log_odds, units, price

    def loss(self, step: int, batch: Batch) -> Tensor:
        self.model.eval()  # dropout would hide the effect of single heads
        with masked(self.model, xi=self.units.xi(self.log_odds.sigmoid()), units=self.units.masks):
            return super().loss(step, batch) - self.price * self.log_odds.sum()

    def after_step(self, step: int) -> None:
        with torch.no_grad():
            self.log_odds.clamp_(-FURTHEST, FURTHEST)


def fit_causal_gates(
    model: Any, task: Task, units: GatedUnits, settings: Gating, seed: int, price: float, progress: Any = None
) -> Tensor:
    """The gates of one seed, (3, heads): without a price, and from there pressed to open, G+, and to close, G-.

    progress: called with the share done.
    """
    noise = torch.randn(units.count, generator=torch.Generator().manual_seed(seed))
    start, fits = (FIRST + JITTER * noise).to(units.own.device), []
    training = model.training
    frozen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        for number, sign in enumerate((0.0, 1.0, -1.0)):
            log_odds = start.clone().requires_grad_()

            def tell(share: float, loss: float, number: int = number) -> None:
                if progress is not None:
                    progress((number + share) / 3)

            CausalTraining(model, task, log_odds, units, settings, seed, sign * price).run(0, lambda epoch: None, tell)
            fits.append(log_odds.detach().sigmoid())
            start = log_odds.detach() if number == 0 else start
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)
        model.train(training)
    return torch.stack(fits)
