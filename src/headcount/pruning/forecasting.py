"""`forecast`: what a pruning job would do, how long each step would take here, and what its data cannot show."""

from __future__ import annotations

from typing import Any

import torch

from headcount.bench import seconds_per_token
from headcount.errors import counted, duration
from headcount.pruning.calibration import CALIBRATION_TOKENS
from headcount.pruning.cut_size import cut_sizes
from headcount.pruning.pipeline import limits_of
from headcount.pruning.search import THOUSANDTHS
from headcount.pruning.search_methods import removable
from headcount.pruning.settings import Pruning
from headcount.pruning.splits import refuse_headless, split_data
from headcount.scoring import unit_moments
from headcount.structure import anatomy, device_of
from headcount.tasks import Task


def forecast(
    model: Any, score_task: Task, select_task: Task, test_task: Task | None, settings: Pruning
) -> dict[str, Any]:
    """The steps of `prune` and their seconds: `steps` [{what, seconds}], `seconds`, `limits` and a `text`.

    limits: where the data is too small to show that a drop is within the budget. Nothing is changed.
    """
    units = settings.units or "heads"
    refuse_headless(model, units)
    data = split_data(score_task, select_task, test_task, settings)
    found = anatomy(model, units)
    total = len(removable(found.heads_of(settings.kinds), settings.keep_at_least))
    tried = len(cut_sizes(settings, THOUSANDTHS if settings.by_cost else total))
    what = "head" if units == ("heads",) else "unit"
    forward, backward, evaluation = _costs(model, data.score, data.select, units)
    score, select, test = (sum(task.lengths) for task in (data.score, data.select, data.test))  # tokens
    calibration = min(CALIBRATION_TOKENS, score) if settings.compensation != "none" else 0
    scored_again = tried - 1 if settings.reestimates else 0  # times
    evaluated = tried if settings.heads is None else 1
    steps = [
        (f"score {counted(len(found.heads), what)} on {counted(len(data.score), 'example')}", backward * score),
        (
            f"try up to {counted(tried, 'cut')} ({settings.method}, compensation {settings.compensation})",
            scored_again * backward * score + tried * 2 * forward * calibration,
        ),
        (f"evaluate them on {counted(len(data.select), 'example')}", evaluated * evaluation * select),
    ]
    if settings.recovery is not None:
        epochs, tokens = settings.recovery.epochs, sum(score_task.lengths)
        words = f"recover for {counted(epochs, 'epoch')} on {counted(len(score_task), 'example')}"
        steps.append((words, 1.5 * backward * epochs * tokens))
    steps.append((f"test on {counted(len(data.test), 'held-out example')}", 2 * evaluation * test))
    seconds = sum(time for _, time in steps)
    lines = [f"To {settings.goal}, with {counted(total, f'removable {what}')}, prune would:"]
    lines += [f"  {what}: about {duration(time)}" for what, time in steps]
    limits = list(limits_of(model, data, settings).values())
    lines += [*data.remarks, *limits, f"In all at most about {duration(seconds)} here."]
    return {
        "steps": [{"what": what, "seconds": time} for what, time in steps],
        "seconds": seconds,
        "limits": limits,
        "text": "\n".join(lines),
    }


def _costs(model: Any, score: Task, select: Task, units: Any) -> tuple[float, float, float]:
    """Seconds per token: of a forward pass, of one with the gradients of all units, and of an evaluation."""
    device = device_of(model)

    def forward(batch: Any) -> None:
        with torch.inference_mode():
            score.outputs(model.eval(), batch)

    def decode(batch: Any) -> None:
        with torch.inference_mode():
            select.decode(model.eval(), batch)

    plain = seconds_per_token(score, forward, device)
    scoring = seconds_per_token(score, lambda batch: unit_moments(model, score.subset(batch.indices), units), device)
    return plain, scoring, seconds_per_token(select, decode, device) if select.generates else plain
