"""Go through a model's layers one by one on the same batches, without computing again what lies below.

A layer that is finished answers with what it put out before, so that reaching a site costs one layer, not all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headcount.anatomy import AttentionSite, device_of
from headcount.evaluate.substitute import Substitutes
from headcount.tasks import Batch, Task


class _Reached(Exception):
    """What was wanted has been seen: the rest of the model need not run."""


class Walk:
    """Sites in the order in which they run; a layer must not change any more once a later one has been asked for."""

    def __init__(self, model: nn.Module, task: Task, batches: Sequence[Batch], sites: Sequence[AttentionSite]) -> None:
        self.model, self.task, self.batches = model, task, batches
        self.device = device_of(model)
        self.shared = any(site.also_layers for site in sites)  # ALBERT's one layer runs many times
        self.blocks = list(dict.fromkeys(site.block for site in sites))
        self.stack = {block: i for i, m in enumerate(model.modules()) if isinstance(m, nn.ModuleList) for block in m}
        self.finished: list[dict[int, Any]] = [{} for _ in batches]  # per batch: what the last finished layer put out
        self.done = 0  # so many layers are finished

    def contexts(self, site: AttentionSite) -> Iterator[Tensor]:
        """What enters a site's projection in each batch, all calls together: (calls * B * T, heads * head_dim)."""
        self._finish_below(site.block)
        for place, batch in enumerate(self.batches):
            seen: list[Tensor] = []

            def hook(module: nn.Module, args: tuple[Tensor, ...], seen: list[Tensor] = seen) -> None:
                seen.append(args[0])
                if not self.shared:
                    raise _Reached

            handle = site.output.register_forward_pre_hook(hook)
            try:
                self._run(place, batch)
            finally:
                handle.remove()
            yield torch.cat([call.flatten(0, 1) for call in seen]).clone()

    def _finish_below(self, block: nn.Module) -> None:
        """Keep what the layer before this one puts out now; of the ones below it, the last of each stack is enough."""
        position = self.blocks.index(block)
        if self.shared or position <= self.done:
            return
        ends = [i for i in range(self.done, position - 1) if self._stack(i) != self._stack(i + 1)]
        for last in [*ends, position - 1]:
            for place, batch in enumerate(self.batches):
                kept: list[Any] = []

                def hook(module: nn.Module, args: Any, output: Any, kept: list[Any] = kept) -> None:
                    kept.append(output)
                    raise _Reached

                handle = self.blocks[last].register_forward_hook(hook)
                try:
                    self._run(place, batch)
                finally:
                    handle.remove()
                self.finished[place][self._stack(last)] = kept[0]
            self.done = last + 1

    def _run(self, place: int, batch: Batch) -> None:
        with Substitutes() as stubs, torch.inference_mode():
            for position in range(self.done):
                answer = self.finished[place][self._stack(position)]
                stubs.put(self.blocks[position], lambda *args, answer=answer, **kwargs: answer)
            try:
                self.task.outputs(self.model, batch.to(self.device))
            except _Reached:
                return

    def _stack(self, position: int) -> int:
        return self.stack.get(self.blocks[position], -1)
