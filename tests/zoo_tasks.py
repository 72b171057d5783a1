"""A task for any model of the zoo that has logits: random inputs, arbitrary labels, a loss per example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import zoo
from headcount.tasks import Batch
from headcount.tasks.metrics import CLASSIFICATION

CLASS_WITH_LOGITS = {"clip": "CLIPForImageClassification"}


class ZooTask:
    """Examples of `zoo.inputs`; each has the label that the seed gives it, a token model one per position."""

    generates = False
    metric = CLASSIFICATION["loss"]

    def __init__(self, name: str, model: Any, n: int = 6, seed: int = 0) -> None:
        self.inputs = zoo.inputs(name, batch=n, seed=seed, model=model)
        self.n, self.seed = n, seed
        self.lengths = [self.inputs.get("input_ids", torch.zeros(n, 9)).shape[1]] * n

    @staticmethod
    def model(name: str, seed: int = 0) -> Any:
        """A model of the family with a head that gives logits."""
        return zoo.build(name, CLASS_WITH_LOGITS.get(name, zoo.ZOO[name].classes[1]), seed=seed)

    def __len__(self) -> int:
        return self.n

    def batch(self, indices: Sequence[int]) -> Batch:
        return Batch({key: value[list(indices)] for key, value in self.inputs.items()}, None, tuple(indices))

    def outputs(self, model: Any, batch: Batch) -> Tensor:
        return model(**batch.inputs).logits

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        flat = outputs.reshape(len(batch), -1, outputs.shape[-1])  # (B, positions, classes)
        labels = torch.tensor([[7 * i + p + self.seed for p in range(flat.shape[1])] for i in batch.indices])
        losses = F.cross_entropy(flat.transpose(1, 2), labels % flat.shape[-1], reduction="none")
        return losses.mean(1)

    def decode(self, model: Any, batch: Batch) -> Tensor:
        raise NotImplementedError

    def statistics(self, outputs: Tensor, batch: Batch) -> Tensor:
        losses = self.losses(outputs, batch).double().cpu()
        return torch.stack([torch.ones_like(losses), torch.zeros_like(losses), losses], dim=1)

    def check(self, model: Any) -> list[str]:
        return []

    def signature(self) -> dict[str, Any]:
        return {"task": "zoo", "n": self.n, "seed": self.seed}

    def subset(self, indices: Sequence[int]) -> ZooTask:
        raise NotImplementedError

    def keys(self) -> list[str]:
        return [f"{self.seed}.{i}" for i in range(self.n)]
