"""What a model's units cost: floating-point operations, parameters, or time as measured on this machine.

A search that cuts more than heads compares units by expected loss per cost, so that a head and the hundred neurons that
cost as much are on one scale.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from headcount.bench import count_flops, interleaved, measure_speed, unit_flops
from headcount.heads import Head
from headcount.runs import RunDirectory
from headcount.structure import Site, device_of, whole_anatomy
from headcount.surgery import remove
from headcount.tasks import Task

GRID = (0.0, 0.125, 0.25, 0.5, 0.75)  # widths at which sites are timed, as shares of the whole width
ROUNDS = 7  # of interleaved timing for each
MULTIPLE = 8  # where it is not measured
WIDE = 64  # neurons
_MULTIPLE = "multiple"  # the name under which a measured one is kept


@dataclass(frozen=True, eq=False)
class CostTable:
    """What each site costs when it keeps 0, 1, 2, … of its units: by the site's name, (units + 1,), rising.

    multiple: of which wide sites should keep a number of neurons; matrix kernels like some widths more than others.

    >>> table = CostTable({"encoder.0": np.array([0.0, 2.0, 4.0]), "encoder_ffn.0": np.array([0.0, 1.0, 2.0, 3.0])})
    >>> table.total, table.saved({"encoder.0": 1, "encoder_ffn.0": 3}), table.per_unit("encoder.0", 2)
    (7.0, 2.0, 2.0)
    """

    curves: Mapping[str, np.ndarray]
    multiple: int = MULTIPLE

    @property
    def total(self) -> float:
        """What all units cost together."""
        return float(sum(curve[-1] - curve[0] for curve in self.curves.values()))

    def saved(self, widths: Mapping[str, int]) -> float:
        """What is saved when sites keep this many units."""
        return float(sum(self.curves[name][-1] - self.curves[name][width] for name, width in widths.items()))

    def per_unit(self, name: str, width: int) -> float:
        """What one unit costs at a site that has `width` of them: the mean over the next eighth of the whole width."""
        curve = self.curves[name]
        reach = min(width, max(1, (len(curve) - 1) // 8))
        slope = (curve[width] - curve[width - reach]) / max(1, reach)
        return max(float(slope), 0.01 * float(curve[-1] - curve[0]) / max(1, len(curve) - 1))

    def rounded(self, removed: Sequence[Head]) -> list[Head]:
        """An order of units to remove, without the last ones of each wide site that would leave it an odd width.

        >>> table = CostTable({"encoder_ffn.0": np.arange(65.0)})
        >>> len(table.rounded([Head("encoder_ffn", 0, index) for index in range(20)]))  # leaves 48 instead of 44
        16
        """
        gone = Counter(head.site for head in removed if head.is_neuron)
        widths = {name: len(self.curves[name]) - 1 for name in gone}
        back = {name: -(widths[name] - gone[name]) % self.multiple for name in gone if widths[name] >= WIDE}
        staying: list[Head] = []
        for head in reversed(removed):
            if back.get(head.site, 0):
                back[head.site] -= 1
            else:
                staying.append(head)
        return staying[::-1]


def cost_table(model: Any, sites: Iterable[Site], cost: str, task: Task, run: RunDirectory | None = None) -> CostTable:
    """What the units of these sites cost, for texts of the task's median length.

    cost: one of `COSTS`. run: an open run directory, which keeps measured times, so that a search that resumes goes by
        the same ones.
    """
    sites = [site for site in sites if site.kept]
    if cost == "time":
        curves = _times(model, sites, task, run)
        return CostTable(curves, int(curves.pop(_MULTIPLE)[0]))
    length = int(np.median(task.lengths))
    each = {
        site.name: unit_flops(site, length) if cost == "flops" else site.parameters_of(site.kept) / len(site.kept)
        for site in sites
    }
    return CostTable({site.name: each[site.name] * np.arange(len(site.kept) + 1.0) for site in sites})


def _times(model: Any, sites: list[Site], task: Task, run: RunDirectory | None) -> dict[str, np.ndarray]:
    """Each site's share of the model's time, by width: all sites of one shape are narrowed together, and timed."""
    expected = {_MULTIPLE: 1} | {site.name: len(site.kept) + 1 for site in sites}
    kept = None if run is None else run.load_shard("times")
    if kept is not None and {name: curve.size for name, curve in kept.items()} == expected:
        return kept
    shapes: dict[tuple[Any, ...], list[Site]] = {}
    for site in sites:
        shapes.setdefault((site.kind, site.width, len(site.kept), site.output.weight.shape), []).append(site)
    curves = {_MULTIPLE: np.array([float(_best_multiple(sites))])}
    for alike in shapes.values():
        units = len(alike[0].kept)
        widths = sorted({round(share * units) for share in GRID})
        shares = [*(_share_of_time(model, alike, width, task) for width in widths), 1.0]
        rising = np.maximum.accumulate(shares) - shares[0]
        curve = np.interp(np.arange(units + 1), [*widths, units], rising) / len(alike)
        curves |= {site.name: curve for site in alike}
    if run is not None:
        run.save_shard("times", curves)
    return curves


def _share_of_time(model: Any, sites: list[Site], width: int, task: Task) -> float:
    """The time of the model with this many units at each of the sites, as a share of the whole model's."""
    narrow = remove(model, [head for site in sites for head in site.heads[width:]])
    return 1.0 / measure_speed(model, narrow, task, rounds=ROUNDS).speedup


def saved_by_unit(model: Any, smaller: Any, task: Task) -> dict[str, float]:
    """The share of all FLOPs that the removed heads did, and that of the removed neurons, by what each unit costs."""
    before, after = (flops_by_unit(one, task) for one in (model, smaller))
    whole = flops_of(model, task)
    change = {unit: before[unit] - after.get(unit, 0.0) for unit in before}
    scale = (whole - flops_of(smaller, task)) / max(1.0, sum(change.values()))  # from per-token estimates to the count
    return {unit: value * scale / whole for unit, value in change.items()}


def flops_by_unit(model: Any, task: Task) -> dict[str, float]:
    """FLOPs per token of all heads, and of all neurons."""
    sums = {"heads": 0.0, "neurons": 0.0}
    for site in whole_anatomy(model).sites:
        sums[f"{site.unit}s"] += cost_table(model, [site], "flops", task).total
    return sums


def flops_of(model: Any, task: Task, examples: int = 8) -> int:
    """The floating-point operations of one pass over texts of the task's median length."""
    by_length = sorted(range(len(task)), key=lambda index: task.lengths[index])
    start = max(0, len(by_length) // 2 - examples // 2)
    batch = task.batch(by_length[start : start + examples]).to(device_of(model))
    return count_flops(lambda: task.outputs(model.eval(), batch))


def _best_multiple(sites: Sequence[Site]) -> int:
    """The smallest number whose multiples, as widths of a matrix product, are within 3% of the fastest here."""
    wide = [site for site in sites if _is_wide(site)]
    if not wide:
        return 1
    weight = wide[0].output.weight
    inner, middle = weight.numel() // len(wide[0].kept), len(wide[0].kept) // 2 // 64 * 64 + 64
    rows = torch.randn(512, inner, device=weight.device, dtype=weight.dtype)

    def seconds_per_column(multiple: int) -> Callable[[], float]:
        widths = [middle + multiple * odd for odd in (-1, 1, 3)]
        columns = [torch.randn(inner, width, device=weight.device, dtype=weight.dtype) for width in widths]

        def run() -> float:
            started = time.perf_counter()
            for each in columns:
                rows @ each
            if rows.is_cuda:
                torch.cuda.synchronize()
            return (time.perf_counter() - started) / sum(widths)

        return run

    candidates = (1, 8, 16, 32)
    runs = [seconds_per_column(multiple) for multiple in candidates]
    interleaved(runs, 3)  # to warm up
    each = np.median(interleaved(runs, 25), axis=1)
    return next(multiple for multiple, seconds in zip(candidates, each, strict=True) if seconds <= 1.03 * each.min())


def _is_wide(site: Site) -> bool:
    return site.width == 1 and len(site.kept) >= WIDE
