"""A task for any model of the zoo: statistics that show every change of its output."""

from __future__ import annotations

import numpy as np
import torch

import zoo
from headcount.tasks import Batch, Metric

EXAMPLES = 5


class Probe:
    """The zoo's own inputs; statistics are projections of each example's output, so that any difference shows."""

    generates = False

    def __init__(self, name: str, model, padding: str | None = "right") -> None:
        self.name = name
        self.inputs = zoo.inputs(name, batch=EXAMPLES, padding=padding, model=model)
        self.metric = Metric("probe", lambda sums: np.asarray(sums[..., 0]))

    def __len__(self) -> int:
        return EXAMPLES

    @property
    def lengths(self) -> list[int]:
        return [9] * EXAMPLES

    def batch(self, indices) -> Batch:
        rows = list(indices)
        return Batch({key: value[rows] for key, value in self.inputs.items()}, None, tuple(rows))

    def outputs(self, model, batch):
        if self.name == "clip" and {"pixel_values", "input_ids"} <= set(batch.inputs):
            output = model(**batch.inputs)
            return torch.cat([output.text_embeds, output.image_embeds], dim=-1)
        return zoo.main_output(model(**batch.inputs), batch.inputs.get("attention_mask"))

    def statistics(self, outputs, batch):
        flat = outputs.detach().double().flatten(1)  # (B, everything)
        directions = torch.randn(flat.shape[1], 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        return flat @ directions / flat.shape[1] ** 0.5

    def check(self, model) -> list[str]:
        return []

    def signature(self) -> dict:
        return {"probe": self.name}

    def subset(self, indices):
        raise AssertionError("not asked for here")
