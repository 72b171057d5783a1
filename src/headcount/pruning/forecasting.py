"""What a pruning job would do, and about how long it would take here, from timing one batch."""

from __future__ import annotations

from typing import Any

import torch

from headcount.bench import seconds_per_token
from headcount.pruning.calibration import CALIBRATION_TOKENS
from headcount.pruning.curve import counts, of_kinds, removable
from headcount.pruning.cut_size import COARSE
from headcount.pruning.search import SEARCHES
from headcount.pruning.settings import Target
from headcount.pruning.splits import SCORE_EXAMPLES, keep_apart, refuse_headless
from headcount.scoring import head_gradients
from headcount.structure import anatomy, device_of
from headcount.tasks import Task


def forecast(
    model: Any,
    score_task: Task,
    select_task: Task,
    test_task: Task | None,
    max_drop: float | None,
    target: Target,
    *,
    method: str,
    compensation: str,
    step: float = 0.05,
    kinds: Any = None,
    keep_at_least: int = 0,
    recovery: Any = None,
    seed: int = 0,
    allow_overlap: bool = False,
    **_: Any,
) -> dict[str, Any]:
    """The steps of the job and their seconds: `steps` [{what, seconds}], `seconds` and a `text`; nothing is changed."""
    refuse_headless(model)
    data = keep_apart(score_task, select_task, test_task, SCORE_EXAMPLES, seed, allow_overlap)
    found = anatomy(model)
    total = len(removable(of_kinds(found, kinds), keep_at_least, found.heads))
    search = SEARCHES[method]
    numbers = counts(total, step if target.heads is None else COARSE)[1:]
    if target.heads is not None:
        goal = target.head_count(total)
        numbers = [*(n for n in numbers if n < goal and search.again), goal]
    forward, backward, judging = _costs(model, data.score, data.select)
    tokens = {name: sum(task.lengths) for name, task in vars(data).items() if name != "remarks"}
    calibration = min(CALIBRATION_TOKENS, tokens["score"]) if compensation == "refit" else 0
    evaluations = len(numbers) if target.heads is None else 1
    steps = [
        (f"score {len(found.heads)} heads on {len(data.score)} examples", backward * tokens["score"]),
        (
            f"try up to {len(numbers)} cuts ({method}, compensation {compensation})",
            (len(numbers) - 1) * backward * tokens["score"] * search.again + len(numbers) * 2 * forward * calibration,
        ),
        (f"evaluate them on {len(data.select)} examples", evaluations * judging * tokens["select"]),
    ]
    if recovery is not None:
        trained = recovery.epochs * sum(score_task.lengths)
        steps.append((f"recover for {recovery.epochs} epochs on {len(score_task)} examples", 1.5 * backward * trained))
    steps.append((f"prove it on {len(data.test)} examples", 2 * judging * tokens["test"]))
    seconds = sum(time for _, time in steps)
    if target.given:
        goal_text = ", ".join(f"{name} {value:g}" for name, value in vars(target).items() if value is not None)
    else:
        goal_text = f"a drop of at most {max_drop:g} points"
    lines = [f"Would cut {total} heads that may go, for {goal_text}:"]
    lines += [f"  {what}: about {_duration(time)}" for what, time in steps]
    lines += [*data.remarks, f"In all about {_duration(seconds)} here, at most."]
    return {
        "steps": [{"what": what, "seconds": time} for what, time in steps],
        "seconds": seconds,
        "text": "\n".join(lines),
    }


def _costs(model: Any, score: Task, select: Task) -> tuple[float, float, float]:
    """Seconds per token: of a forward pass, of one with the gradients of all heads, and of an evaluation."""
    device = device_of(model)

    def forward(batch: Any) -> None:
        with torch.inference_mode():
            score.outputs(model.eval(), batch)

    def judge(batch: Any) -> None:
        with torch.inference_mode():
            select.decode(model.eval(), batch)

    plain = seconds_per_token(score, forward, device)
    scoring = seconds_per_token(score, lambda batch: head_gradients(model, score.subset(batch.indices)), device)
    return plain, scoring, seconds_per_token(select, judge, device) if select.generates else plain


def _duration(seconds: float) -> str:
    """
    >>> _duration(42.3), _duration(600)
    ('42 seconds', '10 minutes')
    """
    return f"{seconds:.0f} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"
