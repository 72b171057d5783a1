"""One stage of training: weights and gates together, with a fixed price per open gate or one that is steered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headcount.errors import HeadcountError, unknown
from headcount.gates.hard_concrete import HardConcrete
from headcount.heads import Head
from headcount.intervene import masked
from headcount.structure import anatomy
from headcount.tasks import Task
from headcount.training import Training, set_weights, weights_of

WEIGHTS = ("all", "gated", "none")


RAMP = 0.6  # the number of open gates is led from all to the wanted one during this share of the steps
STEERING = 0.5  # how fast the price follows: it grows e-fold in two steps if all gates are open and none should be
CHEAPEST, DEAREST = 1e-6, 1e3
NOTES, LOOKS = 50, 20  # how often a stage writes down how it goes, and keeps a model that is still good


@dataclass
class Snapshot:
    """Weights and gates at a step at which not all gates were closed."""

    step: int
    weights: dict[str, Tensor]
    log_alpha: Tensor


@dataclass
class Course:
    """How a stage went so far: the price of an open gate, and notes [{step, loss, open, lambda}]."""

    price: float
    notes: list[dict[str, float]] = field(default_factory=list)


class GateTraining(Training):
    """`L_xent + lambda L_C` (V19 section 6.1), one sample of the gates for each batch.

    heads: those that have gates. price: lambda. wanted: instead, how many gates shall stay open; lambda is then
    steered: it grows while more are open than there should be by then, and falls while fewer are.
    """

    def __init__(
        self,
        model: Any,
        task: Task,
        gates: HardConcrete,
        heads: Sequence[Head],
        settings: Gating,
        *,
        price: float,
        wanted: int | None = None,
    ) -> None:
        self.weights = trained_weights(model, heads, settings.weights)
        learning = {id(parameter) for parameter in self.weights}
        self.frozen = [p for p in model.parameters() if p.requires_grad and id(p) not in learning]
        groups = [
            {"params": self.weights, "lr": settings.lr},
            {"params": list(gates.parameters()), "lr": settings.gate_lr, "weight_decay": 0.0, "steady": True},
        ]
        super().__init__(
            model, task, groups, epochs=settings.epochs, tokens=settings.tokens, seed=settings.seed, what="the gates"
        )
        self.gates, self.wanted, self.course = gates, wanted, Course(price)
        order = anatomy(model).heads
        self.places = torch.tensor([order.index(head) for head in heads], device=self.device)
        self.count = len(order)
        self.snapshot: Snapshot | None = None
        self.recent: list[float] = []

    def epoch(self, number: int, progress: Any) -> None:
        for parameter in self.frozen:
            parameter.requires_grad_(False)
        try:
            super().epoch(number, progress)
        finally:
            for parameter in self.frozen:
                parameter.requires_grad_(True)

    def loss(self, step: int, batch: Any) -> Tensor:
        noise = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        xi = torch.ones(self.count, device=self.device).index_copy(0, self.places, self.gates.sample(noise))  # (H,)
        with masked(self.model, xi=xi):
            loss = self.task.losses(self.task.outputs(self.model, batch), batch).mean()
        self.recent.append(float(loss.detach()))
        return loss + self.course.price * self.gates.penalty()

    def after(self, step: int) -> None:
        expected = float(self.gates.penalty().detach())
        if self.wanted is not None:
            total = len(self.places)
            by_now = total - (total - self.wanted) * min(1.0, (step + 1) / (RAMP * self.steps))
            grown = self.course.price * torch.tensor(STEERING * (expected - by_now) / total).exp().item()
            self.course.price = min(DEAREST, max(CHEAPEST, grown))
        if (step + 1) % max(1, self.steps // NOTES) == 0 or step + 1 == self.steps:
            mean = sum(self.recent) / max(1, len(self.recent))
            self.course.notes.append({"step": step + 1, "loss": mean, "open": expected, "lambda": self.course.price})
            self.recent = []
        at_the_end = (step + 1) % len(self.batches) == 0
        if (at_the_end or (step + 1) % max(1, self.steps // LOOKS) == 0) and not bool(self.gates.closed().all()):
            self.snapshot = Snapshot(step + 1, weights_of(self.model), self.gates.log_alpha.detach().clone())

    def go_back(self) -> int:
        """Return to the last step at which not all gates were closed; says which it was, 0 for before the first."""
        if self.snapshot is None:
            return 0
        set_weights(self.model, self.snapshot.weights)
        with torch.no_grad():
            self.gates.log_alpha.copy_(self.snapshot.log_alpha)
        return self.snapshot.step


@dataclass(frozen=True)
class Gating:
    """Settings of `train_gates`.

    epochs: of each stage. lr: of the weights, at its height, after a tenth of the steps; it falls to 0 at the end.
    gate_lr: of the gates, steady. tokens: per batch, padding included.
    weights: "all" learn along; "gated": only layers that have gates do, and the rest is frozen, so that functions
    cannot move there (V19 freezes the decoder when it prunes the encoder); "none": the gates learn alone.
    By default "gated" if only some kinds have gates, else "all".
    """

    epochs: int = 1
    lr: float = 5e-5
    gate_lr: float = 0.1
    tokens: int = 1024
    weights: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.lr <= 0 or self.gate_lr <= 0 or self.tokens < 1:
            raise HeadcountError(f"these are no settings to train gates with: {self}")
        if self.weights is not None and self.weights not in WEIGHTS:
            raise HeadcountError(unknown("choice of weights", self.weights, WEIGHTS))


def trained_weights(model: nn.Module, heads: Sequence[Head], which: str | None) -> list[nn.Parameter]:
    """The parameters that learn along with the gates of these heads; fixed ones, such as sinusoids, stay fixed."""
    found = anatomy(model)
    which = which or ("all" if len(heads) == len(found.heads) else "gated")
    if which == "none":
        return []
    if which == "all":
        return [parameter for parameter in model.parameters() if parameter.requires_grad]
    names = {head.site for head in heads}
    blocks = {id(site.block): site.block for site in found.sites if site.name in names}
    unique = {id(parameter): parameter for block in blocks.values() for parameter in block.parameters()}
    return [parameter for parameter in unique.values() if parameter.requires_grad]
